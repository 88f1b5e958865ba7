"""The facts about this process that someone reading the run a year later wants: code, machine, versions."""

from __future__ import annotations

import getpass
import os
import platform
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from memagent import __version__
from memagent.errors import SettingError

_TELLING_VARIABLES = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "MALLOC_ARENA_MAX",
    "WORLD_SIZE",
    "LOCAL_RANK",
)
_SECRET_WORDS = ("token", "secret", "password", "passwd", "api_key", "apikey", "credential")
_MASK = "***"


def user_name() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # containers without a passwd entry
        return None


def host_name() -> str:
    return socket.gethostname()


def describe_process(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Versions, command line, git state and the variables that change how memory behaves; secrets masked."""
    torch = sys.modules.get("torch")
    facts: dict[str, Any] = {
        "memagent": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": shlex.join(masked_arguments(sys.orig_argv)),
        "directory": os.getcwd(),
        "variables": {name: environ[name] for name in _TELLING_VARIABLES if name in environ},
        **_git_state(),
    }
    if torch is not None:
        facts["torch"] = str(torch.__version__)
        facts["cuda"] = torch.version.cuda
    return facts


def plain_config(config: Any) -> dict[str, Any]:
    """A config as a plain dict: from a mapping, a dataclass, an argparse.Namespace or anything with `vars()`; secrets masked.

    Raises SettingError for what is none of these.
    """
    if config is None:
        return {}
    if is_dataclass(config) and not isinstance(config, type):
        items: Mapping[Any, Any] = asdict(config)
    elif isinstance(config, Mapping):
        items = config
    elif hasattr(config, "items"):
        items = dict(config.items())
    elif hasattr(config, "__dict__"):
        items = vars(config)
    else:
        raise SettingError(f"config is a {type(config).__name__}: give a dict, a dataclass or an argparse.Namespace")
    return {str(key): _MASK if _is_secret(str(key)) else _plain(value) for key, value in items.items()}


def masked_arguments(arguments: list[str]) -> list[str]:
    """Command-line arguments with the values of `--token x`, `--api-key=x` and their like replaced."""
    masked: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        secret = argument.startswith("-") and _is_secret(name)
        masked.append(f"{name}={_MASK}" if secret and equals else _MASK if hide_next else argument)
        hide_next = secret and not equals
    return masked


def _is_secret(name: str) -> bool:
    lowered = name.lower().replace("-", "_")
    return any(word in lowered for word in _SECRET_WORDS) and not lowered.endswith(("_tokens", "tokens"))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return plain_config(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return str(value)


def _git_state() -> dict[str, Any]:
    commit = _git("rev-parse", "HEAD")
    return (
        {}
        if commit is None
        else {"git_commit": commit, "git_dirty": bool(_git("status", "--porcelain", "--untracked-files=no"))}
    )


def _git(*arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=2, check=True)  # noqa: S603, S607
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
