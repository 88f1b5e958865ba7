"""Recorded memory histories of torch: as events to replay, and as truth to score the simulation against.

Reads the dictionary of `torch.cuda.memory._snapshot()` (what `_dump_snapshot` pickles). Each device has a trace of what
its allocator was asked (`alloc`, `free_requested`, `free_completed`) and did (`segment_alloc`, `segment_free`,
`segment_map`, `segment_unmap`, `oom`). Source: pytorch `torch/csrc/cuda/Module.cpp`, `c10/core/CachingDeviceAllocator.h`.

How `score_history` repeats a history:

1. What torch was asked is given; where the driver put each new segment is taken from the record, for a free block's
   address decides between equals. Everything else is the simulation's own doing.
2. `segment_free` and `segment_unmap` show that torch emptied its cache, because it was told to or because the device was
   full. The simulation is told the same and must give back the same. (With a garbage collection threshold or a maximal
   split size only some segments go; then it is told which, and must find them free.)
3. After every request, reserved bytes and the number of segments must be equal; each block's address too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from memagent.errors import EstimateError
from memagent.estimator.allocator.caching import CachingAllocator, SimulatedOutOfMemory
from memagent.estimator.allocator.config import UNLIMITED, AllocatorConfig
from memagent.estimator.allocator.opening import Opening, find_opening, restore
from memagent.estimator.allocator.segments import RecordedSegments

_TAKEN = {"segment_alloc": False, "segment_map": True}
_GIVEN_BACK = {"segment_free": False, "segment_unmap": True}


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One `alloc` or `free` of a recorded trace, as `replay` takes it; `index` is its place in the trace."""

    kind: Literal["alloc", "free"]
    storage: int
    size_bytes: int
    index: int
    stream: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where simulation and record part: reserved bytes and segments of both."""

    index: int
    action: str
    recorded_reserved: int
    simulated_reserved: int
    recorded_segments: int
    simulated_segments: int


@dataclass(frozen=True, slots=True)
class HistoryScore:
    """How well the simulation repeats a recorded history. Sizes in bytes.

    `compared` places were looked at, after each request; the mismatches count those where reserved bytes or segments
    differed, and the blocks that were put elsewhere. `worst_reserved_error` is the largest difference, simulated minus
    recorded. `opening_bytes` were reserved before the record begins and rebuilt from the snapshot's end; `unknown_frees` are
    frees of memory that could not be known. `final_allocated` and `final_blocks_equal` compare with the snapshot's
    segments, where it has them. `private_segments` belong to CUDA graphs or user pools, which are not simulated.
    """

    compared: int
    allocations: int
    reserved_mismatches: int
    segment_mismatches: int
    address_mismatches: int
    worst_reserved_error: int
    first_difference: Difference | None
    recorded_peak_reserved: int
    simulated_peak_reserved: int
    simulated_peak_allocated: int
    final_allocated: tuple[int, int] | None
    final_blocks_equal: bool | None
    opening_bytes: int
    unknown_frees: int
    ooms: int
    private_segments: int

    @property
    def exact(self) -> bool:
        """Whether reserved bytes and segments were right everywhere, and so is the end."""
        return (
            not self.reserved_mismatches
            and not self.segment_mismatches
            and self.final_blocks_equal is not False
            and (self.final_allocated is None or self.final_allocated[0] == self.final_allocated[1])
        )


def history_events(snapshot: Mapping[str, Any], device: int = 0) -> Iterator[HistoryEvent]:
    """The requests of a recorded trace, ready for `replay`: memory counts as freed when it can be used again.

    Frees of memory that was allocated before the record began are left out. Raises EstimateError without a trace.
    """
    storages: dict[int, tuple[int, int, int]] = {}
    last = 0
    for index, entry in enumerate(device_trace(snapshot, device)):
        action = entry["action"]
        if action == "alloc":
            last += 1
            address, size, stream = (
                int(entry["addr"]),
                int(entry["size"]),
                int(entry.get("stream", 0)),
            )
            storages[address] = (last, size, stream)
            yield HistoryEvent("alloc", last, size, index, stream)
        elif action == "free_completed":
            held = storages.pop(int(entry["addr"]), None)
            if held is not None:
                yield HistoryEvent("free", held[0], held[1], index, held[2])


def score_history(
    snapshot: Mapping[str, Any],
    config: AllocatorConfig | None = None,
    *,
    device: int = 0,
    total_bytes: int | None = None,
) -> HistoryScore:
    """Repeat a recorded history in the simulation and compare; the configuration is the recorded one unless given.

    `total_bytes`, the device's memory, only decides how far an expandable segment can grow before a second one begins.
    Never raises for differences, only EstimateError when the snapshot has no trace for the device.
    """
    trace = device_trace(snapshot, device)
    config = config or AllocatorConfig.from_snapshot(snapshot)
    scoring = _Scoring(config, find_opening(snapshot, trace, device), total_bytes)
    for index, entry in enumerate(trace):
        scoring.take(index, entry)
    return scoring.answer(snapshot, len(trace), device)


def device_trace(snapshot: Mapping[str, Any], device: int) -> list[dict[str, Any]]:
    """The trace of one device. Raises EstimateError when there is none, or an empty one."""
    traces = snapshot.get("device_traces") or []
    if not 0 <= device < len(traces) or not traces[device]:
        raise EstimateError(
            f"the snapshot has no history of device {device}: call torch.cuda.memory._record_memory_history() before the run"
        )
    return list(traces[device])


class _Scoring:
    """The simulation beside the record, entry by entry."""

    def __init__(self, config: AllocatorConfig, opening: Opening, total_bytes: int | None) -> None:
        self.recorded = RecordedSegments()
        place, observer = self.recorded.place, self.recorded.simulated
        self.allocator = CachingAllocator(config, total_bytes, place=place, observer=observer)
        self.allocator.limit(None)  # when the device was full is in the record
        # Only part of the cache goes when these are set, and when is up to the device; the record tells which part.
        self.partly = config.max_split_bytes < UNLIMITED or config.garbage_collection_threshold > 0
        self.blocks = restore(opening, self.allocator, self.recorded)
        self.opening_bytes = self.allocator.reserved
        self.compared = self.allocations = self.unknown_frees = self.ooms = 0
        self.reserved_mismatches = self.segment_mismatches = self.address_mismatches = 0
        self.worst = 0
        self.requested = (
            -1
        )  # the address of the free just asked for; its completion follows at once or late
        self.late: list[int] = []
        self.first: Difference | None = None

    def take(self, index: int, entry: Mapping[str, Any]) -> None:
        """One entry of the trace."""
        action = str(entry["action"])
        if action in _TAKEN:
            self.recorded.taken(int(entry["addr"]), int(entry["size"]), expandable=_TAKEN[action])
            return
        if action in _GIVEN_BACK:
            self.recorded.given_back(
                int(entry["addr"]), int(entry["size"]), expandable=_GIVEN_BACK[action]
            )
            return
        if action == "free_completed" and int(entry["addr"]) != self.requested:
            self.late.append(
                int(entry["addr"])
            )  # it waited for a stream: found out inside the request that follows
            self.requested = -1
            return
        self.requested = -1
        if action == "alloc":
            self._alloc(int(entry["addr"]), int(entry["size"]), int(entry.get("stream", 0)))
        else:
            self._catch_up()
        if action == "free_requested":
            self._free_requested(int(entry["addr"]))
        elif action == "free_completed":
            self._free_completed(int(entry["addr"]))
        elif action == "oom":
            self._oom(int(entry["size"]), int(entry.get("stream", 0)))
        self._compare(index, action)

    def _catch_up(self) -> None:
        """Frees that completed late, and emptied caches, in the order torch does it."""
        self.allocator.on_miss = None
        for address in self.late:
            self._free_completed(address)
        self.late.clear()
        gone = self.recorded.take_given_back()
        if gone and self.partly and not self.allocator.config.expandable_segments:
            self.allocator.release(gone)
        elif gone:
            self.allocator.empty_cache()

    def _alloc(self, address: int, size: int, stream: int) -> None:
        self.allocations += 1
        if self.recorded.grew() and not self.allocator.has_cached(size, stream):
            self.allocator.on_miss = self._catch_up  # a retry: torch looked into the cache before
        else:
            self._catch_up()
        block = self.allocator.malloc(size, stream)
        stale = self.blocks.pop(address, None)
        if stale is not None:  # its free is missing from the record
            with suppress(EstimateError):
                self.allocator.request_free(stale)
            self.allocator.complete_free(stale)
        self.address_mismatches += self.allocator.address(block) != address
        self.blocks[address] = block
        self.recorded.settled()

    def _oom(self, size: int, stream: int) -> None:
        """The request failed. Expandable segments may have grown for it all the same, as far as the memory went."""
        self.ooms += 1
        if self.recorded.grew():
            self.allocator.limit(self.recorded.reserved)
            with suppress(SimulatedOutOfMemory):
                self.allocator.free(self.allocator.malloc(size, stream))
            self.allocator.limit(None)
        self.recorded.settled()

    def _free_requested(self, address: int) -> None:
        block = self.blocks.get(address)
        self.requested = address
        if block is None:
            self.unknown_frees += 1
        else:
            self.allocator.request_free(block)

    def _free_completed(self, address: int) -> None:
        block = self.blocks.pop(address, None)
        if block is not None:
            self.allocator.complete_free(block)

    def _compare(self, index: int, action: str) -> None:
        self.compared += 1
        error = self.allocator.reserved - self.recorded.reserved
        segments = self.allocator.stats.segment.all.current
        self.reserved_mismatches += error != 0
        self.segment_mismatches += segments != self.recorded.segments
        if abs(error) > abs(self.worst):
            self.worst = error
        if self.first is None and (error or segments != self.recorded.segments):
            reserved = self.recorded.reserved
            self.first = Difference(
                index, action, reserved, reserved + error, self.recorded.segments, segments
            )

    def answer(self, snapshot: Mapping[str, Any], entries: int, device: int) -> HistoryScore:
        """The score, with the end of the snapshot where it has one."""
        self._catch_up()
        self._compare(entries, "end")
        segments = [
            one for one in snapshot.get("segments") or [] if int(one.get("device", 0)) == device
        ]
        final = sum(int(one["allocated_size"]) for one in segments), self.allocator.allocated
        return HistoryScore(
            compared=self.compared,
            allocations=self.allocations,
            reserved_mismatches=self.reserved_mismatches,
            segment_mismatches=self.segment_mismatches,
            address_mismatches=self.address_mismatches,
            worst_reserved_error=self.worst,
            first_difference=self.first,
            recorded_peak_reserved=self.recorded.peak_reserved,
            simulated_peak_reserved=self.allocator.peak_reserved,
            simulated_peak_allocated=self.allocator.peak_allocated,
            final_allocated=final if "segments" in snapshot else None,
            final_blocks_equal=self._same_blocks(segments) if "segments" in snapshot else None,
            opening_bytes=self.opening_bytes,
            unknown_frees=self.unknown_frees,
            ooms=self.ooms,
            private_segments=sum(
                tuple(one.get("segment_pool_id", (0, 0))) != (0, 0) for one in segments
            ),
        )

    def _same_blocks(self, segments: list[dict[str, Any]]) -> bool:
        recorded = []
        for segment in segments:
            address = int(segment["address"])
            for block in segment["blocks"]:
                recorded.append(
                    (
                        int(block.get("address", address)),
                        int(block["size"]),
                        block["state"] != "inactive",
                    )
                )
                address += int(block["size"])
        simulated = [
            (block.address, block.size, block.busy) for block in self.allocator.all_blocks()
        ]
        return sorted(recorded) == simulated
