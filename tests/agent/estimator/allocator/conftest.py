"""An independent, slow implementation of torch's allocator rules: every segment is a list of cells.

It shares no code with the simulator, searches everything from the start each time, and writes a
trace and a snapshot in the form of `torch.cuda.memory._snapshot()`. If the two agree on random
programs, neither the ordered pools nor the linked blocks nor the history reader is wrong alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

MIB = 2**20
FREE, USED, WAITING, VOID = "free", "used", "waiting", "void"


class OutOfMemoryError(Exception):
    """The oracle's device is full."""


@dataclass
class Cell:
    start: int
    size: int
    state: str
    requested: int = 0
    since: int = 0


@dataclass
class Segment:
    start: int
    stream: int
    small: bool
    page: int  # 0 for a fixed segment
    cells: list[Cell]

    def reach(self, cell: Cell) -> int:
        after = self.cells.index(cell) + 1
        grows = self.page and after < len(self.cells) and self.cells[after].state == VOID
        return cell.size + (self.cells[after].size if grows else 0)

    def tidy(self) -> None:
        cells = [self.cells[0]]
        for cell in self.cells[1:]:
            if cell.state == cells[-1].state and cell.state in {FREE, VOID}:
                cells[-1].size += cell.size
                cells[-1].since = max(cells[-1].since, cell.since)
            else:
                cells.append(cell)
        self.cells = cells


@dataclass
class Oracle:
    expandable: bool = False
    max_split: int | None = None
    rounding: int = 20 * MIB
    total: int | None = None
    threshold: float = 0.0
    descending: bool = False  # the device places new segments below the old ones
    segments: list[Segment] = field(default_factory=list)
    trace: list[dict[str, Any]] = field(default_factory=list)
    searches: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    retries: int = 0
    placed: int = 0

    # Operations of a program

    def malloc(self, size: int, stream: int = 0) -> int:
        rounded = max(512, -(-size // 512) * 512)
        small = rounded <= MIB
        self.searches[small] += 1
        result = self._search(rounded, small, stream) or self._obtain(rounded, small, stream, size)
        segment, cell = result
        rest = cell.size - rounded
        splittable = self.max_split is None or rounded < self.max_split
        if rest >= 512 and (small or self.expandable or (splittable and rest > MIB)):
            where = segment.cells.index(cell)
            segment.cells.insert(
                where + 1, Cell(cell.start + rounded, rest, FREE, since=self.searches[small])
            )
            cell.size = rounded
        cell.state = USED
        cell.requested = size
        self._record("alloc", cell.start, size, stream)
        return cell.start

    def free(self, address: int) -> None:
        self.request_free(address)
        self.complete_free(address)

    def request_free(self, address: int) -> None:
        segment, cell = self._at(address)
        cell.state = WAITING
        self._record("free_requested", address, cell.requested, segment.stream)

    def complete_free(self, address: int) -> None:
        segment, cell = self._at(address)
        self._record("free_completed", address, cell.requested, segment.stream)
        cell.state = FREE
        cell.requested = 0
        cell.since = self.searches[segment.small]
        segment.tidy()
        for one in segment.cells:  # merged cells count as free from now on
            if one.state == FREE and one.start <= address < one.start + one.size:
                one.since = self.searches[segment.small]

    def empty_cache(self) -> None:
        for segment in list(self.segments):
            for cell in [cell for cell in segment.cells if cell.state == WAITING]:
                self.complete_free(cell.start)
        for segment in list(self.segments):
            if segment.page:
                self._unmap(segment)
            elif [cell.state for cell in segment.cells] == [FREE]:
                self._drop(segment)

    # State for comparisons

    def reserved(self) -> int:
        return sum(
            cell.size for segment in self.segments for cell in segment.cells if cell.state != VOID
        )

    def allocated(self) -> int:
        return sum(
            cell.size for segment in self.segments for cell in segment.cells if cell.state == USED
        )

    def inactive_split(self) -> tuple[int, int]:
        sizes = [
            cell.size
            for segment in self.segments
            if not segment.page and len(segment.cells) > 1
            for cell in segment.cells
            if cell.state == FREE
        ]
        return len(sizes), sum(sizes)

    def blocks(self) -> list[tuple[int, int, bool]]:
        return sorted(
            (cell.start, cell.size, cell.state in {USED, WAITING})
            for segment in self.segments
            for cell in segment.cells
            if cell.state != VOID
        )

    def waiting(self) -> set[int]:
        return {
            cell.start
            for segment in self.segments
            for cell in segment.cells
            if cell.state == WAITING
        }

    def snapshot(self, dropped: int = 0) -> dict[str, Any]:
        """Return the snapshot; the trace's ring has lost its first `dropped` entries."""
        words = {FREE: "inactive", USED: "active_allocated", WAITING: "active_pending_free"}
        segments = []
        for segment in self.segments:
            run: list[Cell] = []
            for cell in [*segment.cells, Cell(0, 0, VOID)]:
                if cell.state != VOID:
                    run.append(cell)
                    continue
                if run:
                    blocks = [
                        {
                            "address": one.start,
                            "size": one.size,
                            "requested_size": one.requested,
                            "state": words[one.state],
                        }
                        for one in run
                    ]
                    segments.append(
                        {
                            "device": 0,
                            "address": run[0].start,
                            "total_size": sum(one.size for one in run),
                            "allocated_size": sum(one.size for one in run if one.state == USED),
                            "active_size": sum(
                                one.size for one in run if one.state in {USED, WAITING}
                            ),
                            "stream": segment.stream,
                            "segment_type": "small" if segment.small else "large",
                            "segment_pool_id": (0, 0),
                            "is_expandable": bool(segment.page),
                            "blocks": blocks,
                        }
                    )
                run = []
        settings = {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "max_split_size": self.max_split or -1,
            "garbage_collection_threshold": self.threshold,
            "expandable_segments": self.expandable,
            "roundup_power2_divisions": {str(2**power): 0 for power in range(16)},
        }
        return {
            "segments": segments,
            "device_traces": [self.trace[dropped:]],
            "allocator_settings": settings,
        }

    # Implementation

    def _search(self, size: int, small: bool, stream: int) -> tuple[Segment, Cell] | None:
        fits = sorted(
            (
                (cell.size, cell.start, segment, cell)
                for segment in self.segments
                if (segment.small, segment.stream) == (small, stream)
                for cell in segment.cells
                if cell.state == FREE and cell.size >= size
            ),
            key=lambda one: one[:2],
        )
        if not fits:
            return None
        chosen = 0
        while fits[chosen][2].page and chosen + 1 < len(fits):
            _, _, segment, cell = fits[chosen]
            _, _, next_segment, next_cell = fits[chosen + 1]
            if next_segment.reach(next_cell) >= segment.reach(cell):
                break
            chosen += 1
        _, _, segment, cell = fits[chosen]
        if self.max_split is not None:
            if size < self.max_split <= cell.size:
                return None
            if size >= self.max_split and cell.size >= size + self.rounding:
                return None
        return segment, cell

    def _obtain(self, size: int, small: bool, stream: int, requested: int) -> tuple[Segment, Cell]:
        if self.threshold and self.total is not None:
            self._collect()
        got = self._new(size, small, stream)
        if (
            got is None
            and self.max_split is not None
            and self._release_oversize(size, small, stream)
        ):
            got = self._new(size, small, stream)
        if got is None:
            self.empty_cache()
            self.retries += 1
            got = self._new(size, small, stream)
        if got is None:
            self.trace.append(
                {"action": "oom", "device_free": 0, "size": size, "stream": stream, "frames": []}
            )
            raise OutOfMemoryError(requested)
        return got

    def _new(self, size: int, small: bool, stream: int) -> tuple[Segment, Cell] | None:
        wanted = (
            2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        )
        if self.total is not None and self.reserved() + wanted > self.total:
            return None
        if self.expandable:
            return self._grow(size, small, stream)
        segment = Segment(self._place(wanted), stream, small, 0, [])
        segment.cells.append(Cell(segment.start, wanted, FREE, since=self.searches[small]))
        self.segments.append(segment)
        self._record("segment_alloc", segment.start, wanted, stream)
        return segment, segment.cells[0]

    def _grow(self, size: int, small: bool, stream: int) -> tuple[Segment, Cell] | None:
        page = 2 * MIB if small else 20 * MIB
        segments = [
            segment
            for segment in self.segments
            if (segment.small, segment.stream) == (small, stream)
        ]
        for segment in sorted(segments, key=lambda one: one.start):
            start = self._room(segment, size)
            if start is not None:
                return self._map(segment, start, size)
        room = 2**44 if self.total is None else self.total + self.total // 8
        room = -(-room // page) * page
        segment = Segment(self._place(room), stream, small, page, [])
        segment.cells.append(Cell(segment.start, room, VOID))
        self.segments.append(segment)
        return self._map(segment, segment.start, size)

    def _room(self, segment: Segment, size: int) -> int | None:
        """Find the lowest run of free and unmapped cells that is long enough.

        The first or the second of them is unmapped.
        """
        for number, cell in enumerate(segment.cells):
            if cell.state != VOID:
                continue
            first = number - 1 if number and segment.cells[number - 1].state == FREE else number
            room = 0
            for one in segment.cells[first:]:
                if one.state not in {FREE, VOID} or room >= size:
                    break
                room += one.size
            if room >= size:
                return segment.cells[first].start
        return None

    def _map(self, segment: Segment, start: int, size: int) -> tuple[Segment, Cell] | None:
        while True:
            here = next(one for one in segment.cells if one.start == start)
            if here.state == FREE and here.size >= size:
                return segment, here
            void = here if here.state == VOID else segment.cells[segment.cells.index(here) + 1]
            missing = size - (0 if here is void else here.size)
            pages = -(-min(missing, void.size) // segment.page) * segment.page
            if self.total is not None and self.reserved() + pages > self.total:
                return None
            self._record("segment_map", void.start, pages, segment.stream)
            where = segment.cells.index(void)
            segment.cells.insert(
                where, Cell(void.start, pages, FREE, since=self.searches[segment.small])
            )
            void.start = void.start + pages
            void.size = void.size - pages
            if not void.size:
                segment.cells.remove(void)
            segment.tidy()

    def _unmap(self, segment: Segment) -> None:
        free = [cell for cell in segment.cells if cell.state == FREE]
        for cell in free:
            begin = -(-(cell.start - segment.start) // segment.page) * segment.page + segment.start
            end = (
                cell.start + cell.size - segment.start
            ) // segment.page * segment.page + segment.start
            if begin >= end:
                continue
            pieces = [
                (cell.start, begin, FREE),
                (begin, end, VOID),
                (end, cell.start + cell.size, FREE),
            ]
            where = segment.cells.index(cell)
            segment.cells[where : where + 1] = [
                Cell(left, right - left, state, since=self.searches[segment.small])
                for left, right, state in pieces
                if right > left
            ]
            self._record("segment_unmap", begin, end - begin, segment.stream)
        segment.tidy()
        if free and [cell.state for cell in segment.cells] == [
            VOID
        ]:  # a segment that was never mapped stays
            self.segments.remove(segment)

    def _drop(self, segment: Segment) -> None:
        self.segments.remove(segment)
        self._record("segment_free", segment.start, segment.cells[0].size, segment.stream)

    def _idle(self) -> list[Segment]:
        return [
            one
            for one in self.segments
            if not one.small and not one.page and [c.state for c in one.cells] == [FREE]
        ]

    def _release_oversize(self, size: int, small: bool, stream: int) -> bool:
        target = max(size, self.max_split)
        idle = sorted(
            (
                one
                for one in self._idle()
                if one.stream == stream and not small and one.cells[0].size >= self.max_split
            ),
            key=lambda one: (one.cells[0].size, one.start),
        )
        enough = [one for one in idle if one.cells[0].size >= target]
        if enough:
            self._drop(enough[0])
            return True
        released = 0
        while idle and released < target:
            released += idle[-1].cells[0].size
            self._drop(idle.pop())
        return released >= target

    def _collect(self) -> None:
        target = self.reserved() - int(self.threshold * self.total)
        ages = {id(one): self.searches[False] - one.cells[0].since for one in self._idle()}
        while target > 0 and (idle := self._idle()):
            average = sum(ages[id(one)] for one in idle) / len(idle)
            for one in idle:
                if ages[id(one)] >= average:
                    target -= one.cells[0].size
                    self._drop(one)

    def _at(self, address: int) -> tuple[Segment, Cell]:
        for segment in self.segments:
            for cell in segment.cells:
                if cell.start == address and cell.state in {USED, WAITING}:
                    return segment, cell
        raise AssertionError(f"nothing is given out at {address}")

    def _place(self, size: int) -> int:
        self.placed += -(-size // (2 * MIB)) * 2 * MIB
        return (
            2**56 - self.placed
            if self.descending
            else self.placed - -(-size // (2 * MIB)) * 2 * MIB
        )

    def _record(self, action: str, address: int, size: int, stream: int) -> None:
        self.trace.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": stream,
                "frames": [],
                "time_us": 0,
            }
        )


@pytest.fixture
def oracle() -> Callable[..., Oracle]:
    """Factory of oracles: `oracle(expandable=True, total=100 * 2**20)`."""
    return Oracle


@pytest.fixture
def out_of_memory() -> type[Exception]:
    """The exception of an oracle whose device is full."""
    return OutOfMemoryError
