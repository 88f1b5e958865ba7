"""What an alert rule is: a pure decision, its thresholds, and when it is evaluated.

`is_open` is True while the alert fires: an alert is released a little below the value at which it
fires (hysteresis), so that it doesn't flap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from memagent_server.alerts import summaries
from memagent_server.alerts.rule_input import RuleInput, RuleResult
from memagent_server.alerts.state import Hysteresis

Thresholds = Mapping[str, float]
Schedule = Literal["sample", "turn", "run", "event", "end", "milestone"]
"""Time at which a rule is evaluated.

- `sample`: with each sample whose forecast pages, and with every sample while the alert is open.

- `turn`: once per turn of the worker that has new samples.

- `run`: for the whole run, with or without new samples.

- `event`: with each event of the script.

- `end`: when the run has ended badly.

- `milestone`: once, when a run gets there.
"""
TELLS = ("notice", "warning", "critical", "never")
"""Lowest level that notifies. Only forecasts have notices."""

RELEASE_RATIO = 0.97
"""A firing alert is released below this share of its threshold."""
PER_TURN = Hysteresis(confirm=3, calm=3, hold_s=60.0)


@dataclass(frozen=True)
class Threshold:
    """A number that a project may set, from `least` to `most`. `unit` is ratio, s or bytes."""

    name: str
    default: float
    least: float
    most: float
    unit: str
    about: str


@dataclass(frozen=True)
class Rule:
    """`tells` is the lowest level that notifies by default; anything below becomes a note."""

    name: str
    about: str
    decide: Callable[[RuleInput, Thresholds, bool], RuleResult]
    summarize: Callable[[summaries.Data], str]
    schedule: Schedule
    tells: str = "never"
    thresholds: tuple[Threshold, ...] = ()
    hysteresis: Hysteresis = PER_TURN
    reading: str = ""
    """Figure of the data that the summary of an open alert follows; empty if it's of one moment."""
    tells_end: bool = True
    """False if the end of an alert sends no notification."""
    is_on: bool = True
    """False if projects have to switch it on."""

    @property
    def tells_options(self) -> tuple[str, ...]:
        """Return the levels that a project may choose for `tells`."""
        return TELLS if self.schedule == "sample" else TELLS[1:]


def exceeds(value: float, threshold: float, is_open: bool) -> bool:
    """Return True from a threshold on, and for an alert that fires from a little below it."""
    return value >= threshold * (RELEASE_RATIO if is_open else 1.0)
