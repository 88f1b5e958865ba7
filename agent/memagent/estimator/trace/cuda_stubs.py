"""Answers for what programs ask `torch.cuda` on their way through a step: streams, events, the current device, how much is in use.

None of it matters to a trace, and all of it would talk to a driver. Installed in the tracer's process, for good.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import torch


class Nothing:
    """A stream or an event that is always done; every method does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = torch.device("cuda:0")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 0.0


def install() -> None:
    """Put the answers in place."""
    nothing, stream = Nothing(), contextlib.nullcontext
    answers: dict[str, Any] = {
        "Stream": Nothing,
        "Event": Nothing,
        "stream": lambda *_: stream(),
        "current_stream": lambda *_: nothing,
        "default_stream": lambda *_: nothing,
        "set_stream": lambda *_: None,
        "synchronize": lambda *_: None,
        "current_device": lambda: 0,
        "set_device": lambda *_: None,
        "device_count": lambda: 1,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda *_: None,
        "is_current_stream_capturing": lambda: False,
        "get_device_capability": lambda *_: _CAPABILITY,
        "get_device_name": lambda *_: "NVIDIA A100-SXM4-80GB",
        "get_device_properties": lambda *_: _PROPERTIES,
        **dict.fromkeys(_COUNTERS, lambda *_: 0),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)


_CAPABILITY = (8, 0)
"""Ampere: the oldest generation that has all the kernels `kernels` chooses among."""

_PROPERTIES = SimpleNamespace(
    name="NVIDIA A100-SXM4-80GB",
    major=8,
    minor=0,
    total_memory=80 << 30,
    multi_processor_count=108,
    warp_size=32,
)
_COUNTERS = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
