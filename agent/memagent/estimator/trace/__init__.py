"""Tracer: runs a real training step on fake tensors, in a separate process, and records the events.

`record_trace` is the entry point and returns a `Trace`. The recorder also runs on real tensors,
which provides the truth for the tests. See docs/trace.md. torch is imported only for a trace.
"""

from memagent.errors import TraceError
from memagent.estimator.trace.events import LiveTensor, MemoryEvent, Trace, TraceSummary
from memagent.estimator.trace.tracing import record_trace

__all__ = ["LiveTensor", "MemoryEvent", "Trace", "TraceError", "TraceSummary", "record_trace"]
