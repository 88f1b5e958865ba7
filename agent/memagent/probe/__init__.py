"""Probes: readings of memory, one module per source. A probe reads one device, nothing else.

The training thread takes raw readings and queues them. A thread of memagent interprets them later.
"""

from __future__ import annotations

from typing import Any, Protocol

from memagent.wire.columns import Value
from memagent.wire.messages import Device, Event

RawReading = Any
"""A reading as taken: bytes of a file, or numbers. Only the probe that took it can interpret it."""


def torch_device_name(device: Device) -> str:
    """Return torch's name of a device: `cuda:0`, or `cpu` for the host."""
    return "cpu" if device.kind == "host" else f"{device.kind}:{device.index}"


class Probe(Protocol):
    """Readings of one device.

    - `mark` and `sample` run on the training thread and must cost microseconds.
    - `peak` and `readings` interpret them: on one thread, each reading once, in the order taken.
    - `refresh` runs about once a second on a thread of memagent and does everything slow (NVML,
      other processes). The next `readings` include its results.
    """

    device: Device
    """With the limit as it was at the last `refresh`: a script may change it."""
    columns: tuple[str, ...]
    """Fields of `readings`, in order; the first is `allocated_bytes`."""

    past_peak_bytes: int
    """Most bytes used before the first reading; 0 if that reading's own peak covers them."""

    @property
    def limit_bytes(self) -> int | None:
        """The limit at the last `refresh`."""
        ...

    @property
    def context_bytes(self) -> int | None:
        """Memory of the process apart from tensors: the CUDA context; on a host, libraries."""
        ...

    def mark(self) -> RawReading:
        """Take a reading between two phases."""
        ...

    def sample(self) -> RawReading:
        """Take a reading at the end of a step, which is also a mark."""
        ...

    def peak(self, mark: RawReading) -> int:
        """Return the most bytes allocated between the previous reading and `mark`.

        Exact if the device counts peaks, else the higher of both readings.
        """
        ...

    def readings(self, sample: RawReading) -> tuple[int, tuple[Value, ...]]:
        """Return the peak of a sample, and its values for each of `columns`."""
        ...

    def used_bytes(self) -> int:
        """Return the bytes allocated now."""
        ...

    def refresh(self, max_age_s: float = 0.0) -> None:
        """Update the slow readings; expensive ones may stay if they are younger than this."""
        ...

    def take_events(self) -> list[Event]:
        """Return the events since the last call, such as `xid`; the caller adds their step."""
        ...

    def close(self) -> None:
        """Release files, libraries and wrappers."""
        ...
