"""The memory below the allocator: how much there is, and at which addresses segments lie.

Addresses matter because of equally large free blocks the lowest is taken. The driver's choice is not public; here each new
segment lies above all earlier ones, which is what an otherwise idle process sees. A recorded history brings its own.
"""

from __future__ import annotations

from collections.abc import Callable

ALIGNMENT = 2 * 2**20
_ENDLESS = 2**44  # address space of an expandable segment when the device's size is not given

Place = Callable[[int, bool], int | None]
"""Address for a segment of so many bytes, expandable or not; None leaves the choice to the device."""


class Device:
    """What `cudaMalloc` and `cuMemCreate` can still give. Sizes in bytes.

    `total_bytes` is the device's memory and None means endless; `outside_bytes` of it are held by others: the CUDA
    context, libraries, other processes.
    """

    __slots__ = ("_next", "_place", "held", "limit", "total_bytes")

    def __init__(
        self, total_bytes: int | None, outside_bytes: int = 0, place: Place | None = None
    ) -> None:
        self.total_bytes = total_bytes
        self.limit = None if total_bytes is None else max(total_bytes - outside_bytes, 0)
        self.held = 0
        self._next = 0
        self._place = place

    def free_bytes(self) -> int | None:
        """What is left, as `cudaMemGetInfo` would say; None for an endless device."""
        return None if self.limit is None else self.limit - self.held

    def take(self, size: int) -> bool:
        """Hand out memory; False when there is not enough."""
        if self.limit is not None and self.held + size > self.limit:
            return False
        self.held += size
        return True

    def give_back(self, size: int) -> None:
        """Memory returns to the device."""
        self.held -= size

    def place(self, size: int, *, expandable: bool) -> int:
        """The address of a new segment, or of the address space of an expandable one."""
        if self._place is not None:
            address = self._place(size, expandable)
            if address is not None:
                self._next = max(self._next, _aligned(address + size))
                return address
        address = self._next
        self._next = _aligned(address + size)
        return address

    def address_space(self, page: int) -> int:
        """Bytes of addresses an expandable segment reserves: the device's memory and an eighth, in whole pages."""
        total = self.total_bytes
        wanted = _ENDLESS if total is None else total + total // 8
        return (wanted + page - 1) // page * page


def _aligned(address: int) -> int:
    return (address + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
