"""Types of the checks: their input and their findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from memagent.settings import Settings

FindingLevel = Literal["ok", "warning", "problem"]
DEADLINE_S = 30.0
"""Time for all checks together; they run in parallel."""


@dataclass(frozen=True)
class Finding:
    """One finding and what to do about it. A problem keeps memagent from working."""

    level: FindingLevel
    text: str
    advice: str = ""


@dataclass(frozen=True)
class Environment:
    """Environment variables, and the settings from those that are valid."""

    environ: Mapping[str, str]
    settings: Settings


Check = Callable[[Environment], Iterator[Finding]]


def ok(text: str) -> Finding:
    return Finding("ok", text)


def warning(text: str, advice: str) -> Finding:
    return Finding("warning", text, advice)


def problem(text: str, advice: str) -> Finding:
    return Finding("problem", text, advice)
