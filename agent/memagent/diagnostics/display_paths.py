"""Files as people see them: relative to where the run was started or to its git repository, if they lie inside. Data keep whole paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def roots_of(environment: Mapping[str, Any]) -> tuple[str, ...]:
    """The folders that a run's files are shown relative to, from what it told of its process (docs/record.md)."""
    found = (environment.get(name) for name in ("directory", "git_root"))
    return tuple(root for root in found if isinstance(root, str) and len(root) > 1)


def shown_path(file: str, roots: Sequence[str]) -> str:
    """`src/train.py`; the whole path of what lies in none of the folders."""
    for root in roots:
        if file.startswith(root.rstrip("/") + "/"):
            return file[len(root.rstrip("/")) + 1 :]
    return file


def shown_frame(frame: str, roots: Sequence[str]) -> str:
    """The same for a frame of a stack, `function (file:line)` or `file:line`."""
    function, bracket, place = frame.rpartition(" (")
    return f"{function}{bracket}{shown_path(place, roots)}"


def shown(facts: Mapping[str, Any], roots: Sequence[str]) -> dict[str, Any]:
    """A suspect or a tensor as a dict, with its `file` as people see it."""
    return {**facts, "file": shown_path(str(facts.get("file") or ""), roots)}
