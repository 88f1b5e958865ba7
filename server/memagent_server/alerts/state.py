"""The life of an alert, pure: a state and an observation in, the next state out; time is an argument.

    ok -> pending -> firing -> averted | finished | oom | lost_contact

1. ok becomes pending at the first forecast that pages (warning or critical).
2. pending becomes firing when CONFIRM forecasts in a row have paged, or at once at a critical one: the run may die in seconds.
3. pending falls back to ok at the first forecast that does not page. Nobody hears of it.
4. firing escalates from warning to critical at the first critical forecast. It never de-escalates.
5. firing becomes averted when CALM forecasts in a row did not page and HOLD_S seconds have passed since it fired.
6. The end of the run ends what is firing: oom when it died of out-of-memory, lost_contact when it fell silent, finished otherwise.
   The end of the run ends what is pending without a word, but for oom: then the forecasts were right, if late.
7. Nothing but an observation changes anything: absence of data resolves no alert.
8. averted, finished, oom and lost_contact are final. If a run pages again, that is a new alert.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

State = Literal["ok", "pending", "firing", "averted", "finished", "oom", "lost_contact"]
Severity = Literal["warning", "critical"]

CONFIRM = 3
CALM = 30
HOLD_S = 20.0
FINAL: tuple[State, ...] = ("averted", "finished", "oom", "lost_contact")
PAGING = ("warning", "critical")

_ENDS: dict[str, State] = {"oom": "oom", "lost_contact": "lost_contact"}


@dataclass(frozen=True)
class AlertState:
    """`in_a_row` counts forecasts that say the same: paging while pending, calm while firing. `since` is seconds since the epoch."""

    state: State = "ok"
    severity: Severity = "warning"
    in_a_row: int = 0
    since: float = 0.0

    @property
    def is_final(self) -> bool:
        return self.state in FINAL


def observe(current: AlertState, level: str, now: float) -> AlertState:
    """The state after a forecast of `level`."""
    if current.is_final:
        return observe(AlertState(), level, now) if level in PAGING else current
    if level in PAGING:
        return _paged(current, "critical" if level == "critical" else "warning", now)
    if current.state == "pending":
        return AlertState()
    if current.state == "firing":
        calm = current.in_a_row + 1
        if calm >= CALM and now - current.since >= HOLD_S:
            return replace(current, state="averted", in_a_row=0, since=now)
        return replace(current, in_a_row=calm)
    return current


def end(current: AlertState, run_status: str, now: float) -> AlertState:
    """The state after the run has ended with `run_status`."""
    if current.state == "firing" or (current.state == "pending" and run_status == "oom"):
        return replace(current, state=_ENDS.get(run_status, "finished"), in_a_row=0, since=now)
    return AlertState() if current.state == "pending" else current


def _paged(current: AlertState, severity: Severity, now: float) -> AlertState:
    if current.state == "firing":
        return replace(current, severity="critical" if current.severity == "critical" else severity, in_a_row=0)
    in_a_row = current.in_a_row + 1 if current.state == "pending" else 1
    fires = severity == "critical" or in_a_row >= CONFIRM
    return AlertState("firing" if fires else "pending", severity, 0 if fires else in_a_row, now)
