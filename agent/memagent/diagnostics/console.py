"""Messages on stderr, and paths relative to the directory in which the run started.

Only texts are shortened: recorded data keep absolute paths.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

logger = logging.getLogger("memagent")


def notify_user(message: str) -> None:
    """Print a message on stderr, after `memagent: `.

    Never fails: a script may have closed stderr, or replaced it by an object that can only write.
    """
    stream = sys.stderr  # None in a process without one: print() would write to stdout then
    try:
        if stream is not None:
            stream.write(f"memagent: {message}\n")
            stream.flush()
    except Exception:  # noqa: BLE001
        logger.info(message)


def display_roots(environment: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the directories that a run's files are shown relative to.

    `environment` describes the run's process (docs/record.md): its working directory and the root
    of its git repository.
    """
    directories = (environment.get(name) for name in ("directory", "git_root"))
    return tuple(root for root in directories if isinstance(root, str) and len(root) > 1)


def display_path(file: str, roots: Sequence[str]) -> str:
    """Return `src/train.py`, or the whole path of a file that is in none of the directories."""
    for root in roots:
        prefix = root.rstrip("/") + "/"
        if file.startswith(prefix):
            return file.removeprefix(prefix)
    return file


def display_frame(frame: str, roots: Sequence[str]) -> str:
    """Shorten the path in a stack frame, `function (file:line)` or `file:line`."""
    function, bracket, location = frame.rpartition(" (")
    return f"{function}{bracket}{display_path(location, roots)}"


def with_display_path(item: Mapping[str, Any], roots: Sequence[str]) -> dict[str, Any]:
    """Return a suspect or a tensor as a dict whose `file` is shortened."""
    return {**item, "file": display_path(str(item.get("file") or ""), roots)}
