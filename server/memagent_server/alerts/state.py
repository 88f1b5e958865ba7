"""Alert state machine: a state and an observation in, the next state out. Pure.

    ok -> pending -> firing -> averted | finished | oom | lost_contact

1. An ok alert becomes pending at the first observation that reports a problem.
2. A pending alert fires after `confirm` such observations in a row, or at the first critical one:
   the run may die within seconds.
3. A pending alert returns to ok, without a notification, at the first calm observation.
4. A firing alert escalates (note, warning, critical) at the first more severe observation. It never
   de-escalates.
5. A firing alert is averted after `calm` calm observations in a row, and `hold_s` seconds after it
   fired at the earliest.
6. The end of the run closes a firing alert: oom if the run ran out of memory, lost_contact if it
   fell silent, else finished. A pending alert closes without a notification, except for oom: then
   the forecasts were right, if late.
7. Only observations change a state: missing data resolves no alert.
8. averted, finished, oom and lost_contact are final. If the run pages again, that's a new alert.
9. Old samples confirm nothing: while a stream catches up, a pending alert waits for the newest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from memagent_server.settings import SEVERITIES, Severity

State = Literal["ok", "pending", "firing", "averted", "finished", "oom", "lost_contact"]

FINAL: tuple[State, ...] = ("averted", "finished", "oom", "lost_contact")
_WORST_FIRST: tuple[State, ...] = (
    "oom",
    "lost_contact",
    "firing",
    "pending",
    "finished",
    "averted",
    "ok",
)


@dataclass(frozen=True)
class Hysteresis:
    """Observations in a row that confirm or calm an alert, and its minimum duration in seconds."""

    confirm: int = 3
    calm: int = 30
    hold_s: float = 20.0


PER_SAMPLE = Hysteresis()
"""Hysteresis of rules that decide on every sample."""


@dataclass(frozen=True)
class RuleState:
    """State of one alert.

    `in_a_row` counts equal observations: problems while pending, calm ones while firing. `since` is
    in seconds of any one clock.
    """

    state: State = "ok"
    severity: Severity = "warning"
    in_a_row: int = 0
    since: float = 0.0

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def is_open(self) -> bool:
        return self.state in ("pending", "firing")


def next_state(
    current: RuleState,
    level: str,
    now: float,
    hysteresis: Hysteresis = PER_SAMPLE,
    *,
    may_fire: bool = True,
) -> RuleState:
    """Return the state after an observation of `level`; `may_fire` is False for an old one (9)."""
    severity = next((name for name in SEVERITIES if name == level), None)
    if severity is not None:
        before = RuleState() if current.is_final else current
        return _after_problem(before, severity, now, hysteresis, may_fire)
    if current.state == "pending":
        return RuleState()
    if current.state == "firing":
        calm = current.in_a_row + 1
        if calm >= hysteresis.calm and now - current.since >= hysteresis.hold_s:
            return replace(current, state="averted", in_a_row=0, since=now)
        return replace(current, in_a_row=calm)
    return current


def state_after_run(current: RuleState, run_status: str, now: float) -> RuleState:
    """Return the state after the run has ended with `run_status`."""
    if current.state == "firing" or (current.state == "pending" and run_status == "oom"):
        deaths: dict[str, State] = {"oom": "oom", "lost_contact": "lost_contact"}
        return replace(current, state=deaths.get(run_status, "finished"), in_a_row=0, since=now)
    return RuleState() if current.state == "pending" else current


def worst_state(*states: str) -> str:
    """Return the state that counts for a group: deaths first, then open ones, then the rest."""
    return min(states, key=_WORST_FIRST.index)


def worst_severity(*severities: str) -> str:
    return max(severities, key=SEVERITIES.index)


def _after_problem(
    current: RuleState, severity: Severity, now: float, hysteresis: Hysteresis, may_fire: bool
) -> RuleState:
    if current.state != "ok" and SEVERITIES.index(current.severity) > SEVERITIES.index(severity):
        worst = current.severity
    else:
        worst = severity
    if current.state == "firing":
        return replace(current, severity=worst, in_a_row=0)
    in_a_row = current.in_a_row + 1 if current.state == "pending" else 1
    if may_fire and (severity == "critical" or in_a_row >= hysteresis.confirm):
        return RuleState("firing", worst, 0, now)
    return RuleState("pending", worst, in_a_row, now)
