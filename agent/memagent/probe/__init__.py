"""One module per source of readings. A probe reads one device and knows nothing of steps, buffers or servers."""

from __future__ import annotations

from typing import Protocol

from memagent.wire.columns import Value
from memagent.wire.messages import Device


class Probe(Protocol):
    """Readings of one device.

    `read` and `sample` run on the training thread and must cost microseconds; `refresh` runs about once a second on a thread
    of ours and does whatever is slow (NVML, other processes); its findings show in the next `sample`.
    """

    device: Device
    columns: tuple[str, ...]
    """Fields that `sample` gives, in its order; the first is `allocated_bytes`."""

    def read(self) -> int:
        """Bytes allocated now."""
        ...

    def sample(self) -> tuple[Value, ...]:
        """All readings now."""
        ...

    def peak(self, seen: int) -> int:
        """Most allocated since the last call: at least `seen`, the highest of the caller's readings, more where a counter knows."""
        ...

    def refresh(self) -> None: ...

    def close(self) -> None: ...
