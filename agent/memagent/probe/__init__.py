"""One module per source of readings. A probe reads one device and knows nothing of steps, buffers or servers.

The training thread takes readings as raw as they come and leaves them; what they mean is worked out later on a thread of ours.
"""

from __future__ import annotations

from typing import Any, Protocol

from memagent.wire.columns import Value
from memagent.wire.messages import Device, Event

Raw = Any
"""A reading as it was taken: bytes of a file, or numbers. Only the probe that took it understands it."""


class Probe(Protocol):
    """Readings of one device.

    `mark` and `sample` run on the training thread and must cost microseconds. `peak` and `readings` say what those mean: on any one
    thread, each reading once, in the order in which they were taken. `refresh` runs about once a second on a thread of ours and does
    whatever is slow (NVML, other processes); its findings show in the next `readings`.
    """

    device: Device
    columns: tuple[str, ...]
    """Fields that `readings` gives, in its order; the first is `allocated_bytes`."""

    @property
    def limit_bytes(self) -> int | None:
        """The limit that counts now; `device` holds the one that counted at the start."""
        ...

    @property
    def context_bytes(self) -> int | None:
        """What the process holds there apart from tensors: the CUDA context; on a host interpreter, libraries and data."""
        ...

    def mark(self) -> Raw:
        """A reading at a moment between two phases."""
        ...

    def sample(self) -> Raw:
        """A reading at the end of a step: also a mark."""
        ...

    def peak(self, mark: Raw) -> int:
        """Most bytes allocated between the reading before and `mark`: exact where the device counts peaks, else the higher of
        both readings."""
        ...

    def readings(self, sample: Raw) -> tuple[int, tuple[Value, ...]]:
        """What `peak` is for `sample`, and its readings, one for each of `columns`."""
        ...

    def used_bytes(self) -> int:
        """Bytes allocated now."""
        ...

    def refresh(self) -> None: ...

    def take_events(self) -> list[Event]:
        """What `refresh` saw happen since the last call, such as `xid`; their step is for the caller to add."""
        ...

    def close(self) -> None: ...
