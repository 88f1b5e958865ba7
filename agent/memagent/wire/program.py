"""The program of a run: a hash of its script and configuration, which its reruns share.

1. Script: the last parts of its path, or the module's name, and its arguments. A notebook, and code
   of the command line, counts by its configuration alone.
2. Configuration: names and values, apart from what differs between two runs of the same: seeds,
   names, paths, dates, lengths. A rerun that is longer has the same program.
3. The number of ranks. Not the commit: an edit must not lose the runs before it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from memagent.wire.messages import RunStart

_OF_ONE_RUN = re.compile(
    "seeds?|paths?|dirs?|directory|folder|files?|outputs?|out|logs?|logging|date|time|timestamp"
    "|tags?|notes?|host|hostname|user|port|url|uuid|resume"
)
"""Words in names of what differs between two runs."""
_NAME_OF_ONE_RUN = re.compile(
    "(run_|job_|exp_|experiment_)?(name|id|type)|run|experiment|group|comment|description"
    "|(wandb_)?(project|id|entity)|(local_)?rank|world_size|device|gpu"
    "|((max|total|num|num_train|train)_)?(steps|epochs|iters|iterations)"
)
"""Names of the run, its place and its length."""
_WORD = re.compile(r"[a-z]+")
_VALUE_OF_ONE_RUN = re.compile(r"[/~]|\.{1,2}/|[A-Za-z]:\\|.*\d{4}-?[01]\d-?[0-3]\d")
"""Paths and dates."""
_UNNAMED = ("-c", "ipykernel_launcher")
_MAX_COMMAND = 20_000
"""Characters: shlex takes a quarter of a second for a million."""


def program_of(start: RunStart) -> str | None:
    """Return the hash, None if nothing is known of script and configuration."""
    script, arguments = _script(start.environment)
    config = dict(_settings(start.config, ""))
    if not (script or config):
        return None
    content = (script, sorted(_arguments(arguments)), sorted(config.items()), start.world_size)
    return hashlib.sha256(_text(content).encode()).hexdigest()[:32]


def _script(environment: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the script's place and its arguments; no place for unnamed code."""
    words = _words(environment.get("command"))
    for place, word in enumerate(words[1:], 1):
        if word == "-m" and place + 1 < len(words):
            module = words[place + 1]
            return ("", []) if module in _UNNAMED else (module, words[place + 2 :])
        if word in _UNNAMED:
            return "", []
        if not word.startswith("-"):
            script = PurePath(str(environment.get("directory") or ""), word)
            parts = [part for part in script.parts[-2:] if not _VALUE_OF_ONE_RUN.match(part)]
            return "/".join(parts), words[place + 1 :]
    return "", []


def _words(command: Any) -> list[str]:
    text = command[:_MAX_COMMAND] if isinstance(command, str) else ""
    try:
        return shlex.split(text)
    except ValueError:  # cut off within quotes
        return text.split()


def _arguments(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the names and values of options, and values without a name."""
    name = ""
    for word in words:
        if word.startswith("--") or "=" in word:
            name, has_value, value = word.lstrip("-").partition("=")
            if not has_value:
                if _is_setting(name):
                    yield name, ""
                continue
        else:
            value = word
        if _is_setting(name) and not _VALUE_OF_ONE_RUN.match(value):
            yield name, value
        name = ""


def _settings(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the JSON of each value of a config that reruns share."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if _is_setting(str(name)):
                yield from _settings(item, f"{path}.{name}")
    elif not (isinstance(value, str) and _VALUE_OF_ONE_RUN.match(value)):
        yield path, _text(value)


def _text(value: Any) -> str:
    """Return ASCII, whatever the value: msgspec refuses lone surrogates and integers of 65 bits."""
    return json.dumps(value, default=str)


def _is_setting(name: str) -> bool:
    # `trainer.max-steps` is `max_steps`
    plain = name.lower().replace("-", "_").rpartition(".")[2]
    is_of_one_run = any(map(_OF_ONE_RUN.fullmatch, _WORD.findall(plain)))
    return not (is_of_one_run or _NAME_OF_ONE_RUN.fullmatch(plain))
