"""The life of an alert, pure: a state and an observation in, the next state out; time is an argument.

    ok -> pending -> firing -> averted | finished | oom | lost_contact

1. ok becomes pending at the first observation that says something is wrong.
2. pending becomes firing when `confirm` observations in a row have said so, or at once at a critical one: the run may die in seconds.
3. pending falls back to ok at the first observation that is calm. Nobody hears of it.
4. firing escalates (note, warning, critical) at the first graver observation. It never de-escalates.
5. firing becomes averted when `calm` observations in a row were calm and `hold_s` seconds have passed since it fired.
6. The end of the run ends what is firing: oom when it died of out-of-memory, lost_contact when it fell silent, finished otherwise.
   The end of the run ends what is pending without a word, but for oom: then the forecasts were right, if late.
7. Nothing but an observation changes anything: absence of data resolves no alert.
8. averted, finished, oom and lost_contact are final. If a run pages again, that is a new alert.
9. What is read long after it was measured confirms nothing: while a stream catches up, pending waits for the newest samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from memagent_server.settings import SEVERITIES, Severity

State = Literal["ok", "pending", "firing", "averted", "finished", "oom", "lost_contact"]

FINAL: tuple[State, ...] = ("averted", "finished", "oom", "lost_contact")

_ENDS: dict[str, State] = {"oom": "oom", "lost_contact": "lost_contact"}
_FROM_WORST: tuple[State, ...] = (
    "oom",
    "lost_contact",
    "firing",
    "pending",
    "finished",
    "averted",
    "ok",
)


@dataclass(frozen=True)
class Patience:
    """How many observations in a row confirm or calm an alert, and how long it stands at least, in seconds."""

    confirm: int = 3
    calm: int = 30
    hold_s: float = 20.0


FORECAST = Patience()
"""For what is observed with every sample."""


@dataclass(frozen=True)
class AlertState:
    """`in_a_row` counts observations that say the same: paging while pending, calm while firing. `since` is in seconds of any one clock."""

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


def observe(
    current: AlertState,
    level: str,
    now: float,
    patience: Patience = FORECAST,
    *,
    may_fire: bool = True,
) -> AlertState:
    """The state after an observation of `level`; `may_fire` is False for one that is long past (9)."""
    severity = next((known for known in SEVERITIES if known == level), None)
    if severity is not None:
        return _paged(
            AlertState() if current.is_final else current, severity, now, patience, may_fire
        )
    if current.state == "pending":
        return AlertState()
    if current.state == "firing":
        calm = current.in_a_row + 1
        if calm >= patience.calm and now - current.since >= patience.hold_s:
            return replace(current, state="averted", in_a_row=0, since=now)
        return replace(current, in_a_row=calm)
    return current


def end(current: AlertState, run_status: str, now: float) -> AlertState:
    """The state after the run has ended with `run_status`."""
    if current.state == "firing" or (current.state == "pending" and run_status == "oom"):
        return replace(current, state=_ENDS.get(run_status, "finished"), in_a_row=0, since=now)
    return AlertState() if current.state == "pending" else current


def worst_state(*states: str) -> str:
    """The one that counts for all of them: an end by death, then what is open, then harmless ends."""
    return min(states, key=_FROM_WORST.index)


def gravest(*severities: str) -> str:
    return max(severities, key=SEVERITIES.index)


def _paged(
    current: AlertState, severity: Severity, now: float, patience: Patience, may_fire: bool
) -> AlertState:
    graver = current.state == "ok" or SEVERITIES.index(severity) > SEVERITIES.index(
        current.severity
    )
    kept = severity if graver else current.severity
    if current.state == "firing":
        return replace(current, severity=kept, in_a_row=0)
    in_a_row = current.in_a_row + 1 if current.state == "pending" else 1
    if may_fire and (severity == "critical" or in_a_row >= patience.confirm):
        return AlertState("firing", kept, 0, now)
    return AlertState("pending", kept, in_a_row, now)
