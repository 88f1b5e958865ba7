"""Every `memagent` command in the docs has an existing verb and existing options.

Commands without placeholders are run by tests/system/test_docs.py.
"""

from __future__ import annotations

import contextlib
import io
import re
from functools import cache
from pathlib import Path

import pytest

from memagent.cli import VERBS, main
from tests.snippets import PAGES, blocks, spans

LAUNCHERS = ("run", "rehearse")
"""What follows their script is the script's own."""


def commands(page: Path) -> list[list[str]]:
    """Words of each command, from code spans and from blocks that a shell would read."""
    lines = [
        line.split("#")[0]
        for block in blocks(page, "sh", "console")
        for line in block.text.splitlines()
    ]
    return [
        words
        for line in [*spans(page), *lines]
        if (
            words := line[line.index("memagent ") :].split()
            if re.search(r"(^|[ ;|])memagent [a-z]", line)
            else []
        )
    ]


def before_the_script(words: list[str]) -> list[str]:
    return words[
        : next((n for n, word in enumerate(words) if re.fullmatch(r"-m|\w+\.py", word)), len(words))
    ]


@cache
def help_of(*words: str) -> str:
    """Return the text of `--help` of a verb or of one of its actions."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), pytest.raises(SystemExit):
        main([*words, "--help"])
    return output.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_the_docs_exists(page):
    for _, verb, *words in commands(page):
        if not verb.isalpha() or verb.isupper():
            continue
        assert verb in VERBS, f"memagent {verb}"
        rest = before_the_script(words) if verb in LAUNCHERS else words
        usage = help_of(verb)
        if (
            verb not in LAUNCHERS
            and rest
            and re.fullmatch(r"[a-z]+", rest[0])
            and re.search(rf"[{{|, ]{rest[0]}[}}|,\s]", usage)
        ):
            usage += help_of(verb, rest[0])
        for option in (
            word.strip("[]").split("=")[0] for word in rest if word.strip("[]").startswith("--")
        ):
            assert re.search(rf"{re.escape(option)}\b", usage), (
                f"memagent {verb} {' '.join(rest)}: {option}"
            )
