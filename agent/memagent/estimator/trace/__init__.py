"""The tracer: runs a real training step on fake tensors, in a process of its own, and sees every tensor's birth and
death in order.

`record_trace` is the door; `Trace` the answer. `recorder` also runs on real tensors: that is the truth it is tested
against. docs/trace.md. torch is imported only when a trace is made.
"""

from memagent.errors import TraceError
from memagent.estimator.trace.events import LiveTensor, MemoryEvent, Trace, TraceSummary
from memagent.estimator.trace.tracing import record_trace

__all__ = ["LiveTensor", "MemoryEvent", "Trace", "TraceError", "TraceSummary", "record_trace"]
