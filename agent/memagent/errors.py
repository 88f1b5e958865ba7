"""Everything memagent raises on purpose.

MemagentError
├── SettingError        a setting or argument that is unknown or malformed
├── WireError           bytes that are no valid message or chunk
├── DeliveryError       the server could not take something
│   └── RejectedError   ... and never will: it answered 4xx
└── EstimateError       an estimate was asked for with inputs that make no sense
    └── TraceError      ... or the step could not be run on fake tensors; names the op

A message says what happened, to what, and what to do. Command-line verbs turn each of these into one line on stderr.
Nothing of this tree ever reaches a training loop after `attach()` has returned: see `memagent.diagnostics.error_guard`.
"""

from __future__ import annotations


class MemagentError(Exception):
    """Base of all errors raised by memagent."""


class SettingError(MemagentError):
    """A setting or an argument is unknown or malformed; the message names it."""


class WireError(MemagentError):
    """Bytes are no valid message or chunk; `field` names the place where known."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class DeliveryError(MemagentError):
    """The server could not take something now; trying again may help."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RejectedError(DeliveryError):
    """The server answered that it will never take this (a 4xx status)."""


class EstimateError(MemagentError):
    """An estimate was asked for with inputs that make no sense."""


class TraceError(EstimateError):
    """A training step could not be run on fake tensors; `op` names the operator it stopped at, "" where there was none."""

    def __init__(self, message: str, *, op: str = "") -> None:
        super().__init__(message)
        self.op = op
