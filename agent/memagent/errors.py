"""All errors that memagent raises on purpose.

MemagentError
├── SettingError        a setting or an argument is unknown or malformed
│   ├── FilterError     ... the argument is a filter on runs (`where`)
│   └── OptionError     ... the argument describes a step or a card; an EstimateError, too
├── WireError           bytes are not a valid message or chunk
├── DeliveryError       the server could not accept something
│   └── RejectedError   ... and never will: it answered 4xx
├── EstimateError       an estimate was requested with invalid inputs
│   ├── UnknownModelError   ... or of a model that no method at hand knows
│   └── TraceError      ... or the step could not be run on fake tensors; names the operator
└── RehearsalError      a rehearsal cannot start on this machine

A message says what happened, to what, and what to do. Command-line verbs print it in one line.
None of these reaches a training loop once `attach()` has returned: see
`memagent.diagnostics`.
"""

from __future__ import annotations

from collections.abc import Iterable


class MemagentError(Exception):
    """Base of all errors raised by memagent."""


class SettingError(MemagentError):
    """A setting or an argument is unknown or malformed; the message names it."""


class FilterError(SettingError):
    """A filter on runs cannot be read; the message names the column or the position."""


class WireError(MemagentError):
    """Bytes are not a valid message or chunk; `field` names the position if known."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class DeliveryError(MemagentError):
    """The server could not accept something now; a retry may succeed."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RejectedError(DeliveryError):
    """The server will never accept this (a 4xx status)."""


class StartRequiredError(DeliveryError):
    """The server doesn't know the run, so its start must be delivered (again) first."""


class EstimateError(MemagentError):
    """An estimate was requested with invalid inputs."""


class OptionError(EstimateError, SettingError):
    """A value that an argument doesn't take; `option` is the argument's name in Python.

    The command line spells it as it is typed there.
    """

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(option, problem)  # both, since pickle builds it from `args`
        self.option = option
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.option} {self.problem}"


class UnknownModelError(EstimateError):
    """No method at hand knows the model; the message says what to install or to give."""


class TraceError(EstimateError):
    """A training step could not be run on fake tensors; `op` is the failing operator or ""."""

    def __init__(self, message: str, *, op: str = "") -> None:
        super().__init__(message)
        self.op = op


class RehearsalError(MemagentError):
    """A rehearsal cannot start: the machine, the card or the torch at hand doesn't allow it."""


def did_you_mean(text: str, choices: Iterable[str]) -> str:
    """Return the nearest choice in brackets, "" if none is near."""
    from difflib import get_close_matches  # costs a millisecond, for errors only

    near = get_close_matches(text.lower(), sorted(set(choices)), 1)
    return f" (did you mean {near[0]}?)" if near else ""
