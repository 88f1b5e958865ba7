"""The segments of a recorded history: what torch took from the device and gave back, and at which addresses."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort


class RecordedSegments:
    """Counts what the record says, and lends its addresses to the simulation. Sizes in bytes."""

    def __init__(self) -> None:
        self.reserved = 0
        self.peak_reserved = 0
        self.segments = 0
        self._given_back: set[int] = set()
        self._new: list[
            tuple[int, int, bool]
        ] = []  # taken since the last request: address, size, expandable
        self._simulated: list[
            tuple[int, int]
        ] = []  # ends and starts of the simulation's segments, to avoid overlaps

    def taken(self, address: int, size: int, *, expandable: bool) -> None:
        """`segment_alloc` or `segment_map`."""
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self.segments += not expandable
        self._new.append((address, size, expandable))

    def given_back(self, address: int, size: int, *, expandable: bool) -> None:
        """`segment_free` or `segment_unmap`."""
        self.reserved -= size
        self.segments -= not expandable
        self._given_back.add(address)

    def take_given_back(self) -> set[int]:
        """Addresses given back since the last call."""
        gone, self._given_back = self._given_back, set()
        return gone

    def grew(self) -> bool:
        """Whether memory was taken from the device since the last request."""
        return bool(self._new)

    def settled(self) -> None:
        """The request is done; addresses it did not use are of no more use."""
        self._new.clear()

    def place(self, size: int, expandable: bool) -> int | None:
        """The recorded address for the simulation's new segment, unless that lies on one it still has."""
        for number, (address, recorded, kind) in enumerate(self._new):
            if kind == expandable and (expandable or recorded == size):
                if not expandable and self._overlaps(address, size):
                    return None
                del self._new[number]
                return address
        return None

    def simulated(self, action: str, address: int, size: int) -> None:
        """Hears of the simulation's segments."""
        if action == "segment_alloc":
            insort(self._simulated, (address + size, address))
        elif action == "segment_free":
            del self._simulated[bisect_left(self._simulated, (address + size, address))]

    def _overlaps(self, address: int, size: int) -> bool:
        nearest = bisect_right(self._simulated, (address, 2**63))
        return nearest < len(self._simulated) and self._simulated[nearest][1] < address + size
