"""What a check says, and what it may look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from memagent.settings import Settings

Level = Literal["ok", "warning", "problem"]
DEADLINE_S = 30.0
"""For all checks together; they run side by side."""


@dataclass(frozen=True)
class Finding:
    """One line: what was found, and what to do about it. A problem is what keeps memagent from doing its work."""

    level: Level
    text: str
    advice: str = ""


@dataclass(frozen=True)
class Environment:
    """An environment: its variables, and the settings that remain when malformed ones are left out."""

    environ: Mapping[str, str]
    settings: Settings


Check = Callable[[Environment], Iterator[Finding]]


def ok(text: str) -> Finding:
    return Finding("ok", text)


def warning(text: str, advice: str) -> Finding:
    return Finding("warning", text, advice)


def problem(text: str, advice: str) -> Finding:
    return Finding("problem", text, advice)
