"""Tracer: runs a real training step on fake tensors, in a separate process, and records the events.

`record_trace` is the entry point and returns a `Trace`. The recorder also runs on real tensors,
which provides the truth for the tests. See docs/trace.md. torch is imported only for a trace.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from memagent.errors import TraceError

if TYPE_CHECKING:
    from memagent.estimator.trace.events import LiveTensor, MemoryEvent, Trace, TraceSummary
    from memagent.estimator.trace.tracing import record_trace

__all__ = ["LiveTensor", "MemoryEvent", "Trace", "TraceError", "TraceSummary", "record_trace"]

_EVENTS = ("LiveTensor", "MemoryEvent", "Trace", "TraceSummary")
_MODULES = {**dict.fromkeys(_EVENTS, "events"), "record_trace": "tracing"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
