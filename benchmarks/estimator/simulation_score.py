"""Recorded memory histories of torch: events to replay, and the truth to score the simulation.

Reads the dictionary of `torch.cuda.memory._snapshot()` (the content of a `_dump_snapshot` pickle).
Each device has a trace of the requests to its allocator (`alloc`, `free_requested`,
`free_completed`) and of the allocator's actions (`segment_alloc`, `segment_free`, `segment_map`,
`segment_unmap`, `oom`). Source: pytorch `torch/csrc/cuda/Module.cpp`.

How `score_history` repeats a history:

1. The requests come from the record, and so do the addresses of new segments, because the address
   of a free block decides between equals. The simulation does everything else.
2. `segment_free` and `segment_unmap` show that torch emptied its cache, on request or because the
   device was full. The simulation empties its cache too, and must release the same. With a garbage
   collection threshold or a maximal split size only some segments go: the record says which, and
   the simulation must find them idle.
3. After every request, reserved bytes, the number of segments and each block's address must match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from benchmarks.estimator.initial_state import (
    InitialState,
    RecordedAllocator,
    RecordedSegments,
    find_initial_state,
    restore,
)
from memagent.errors import EstimateError
from memagent.estimator.allocator import AllocatorConfig, SimulatedOutOfMemory
from memagent.estimator.allocator.config import UNLIMITED

_ADDS = {"segment_alloc": False, "segment_map": True}
_RELEASES = {"segment_free": False, "segment_unmap": True}
"""Actions on segments; the value is True for expandable ones."""


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One `alloc` or `free` of a recorded trace, for `replay`; `index` is its place there."""

    kind: Literal["alloc", "free"]
    storage: int
    size_bytes: int
    index: int
    stream: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The first entry at which simulation and record differ, with the values of both."""

    index: int
    action: str
    recorded_reserved: int
    simulated_reserved: int
    recorded_segments: int
    simulated_segments: int


@dataclass(frozen=True, slots=True)
class HistoryScore:
    """The result of repeating a recorded history in the simulation. Sizes are bytes.

    - `compared`: comparisons, one after each request.
    - `*_mismatches`: differences in reserved bytes, in segments, and in the addresses of blocks.
    - `worst_reserved_error`: the largest difference, simulated minus recorded.
    - `opening_bytes`: reserved before the record began.
    - `unknown_frees`: frees of memory that the record doesn't explain.
    - `final_allocated`, `final_blocks_equal`: compared with the snapshot's segments, if any.
    - `private_segments`: of CUDA graphs or user pools, which the simulator leaves out.
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
        """Return whether reserved bytes, segments and the final state all match."""
        return (
            not self.reserved_mismatches
            and not self.segment_mismatches
            and self.final_blocks_equal is not False
            and (self.final_allocated is None or self.final_allocated[0] == self.final_allocated[1])
        )


def config_from_snapshot(snapshot: Mapping[str, Any]) -> AllocatorConfig:
    """Read the settings in a snapshot; missing ones get defaults."""
    settings = snapshot.get("allocator_settings") or {}
    split = int(settings.get("max_split_size", -1))
    by_size = settings.get("roundup_power2_divisions") or {}
    divisions = tuple(int(by_size[size]) for size in sorted(by_size, key=int))
    text = str(settings.get("PYTORCH_CUDA_ALLOC_CONF") or "")
    large_segment = re.search(r"large_segment_size_mb\s*:\s*\d+", text)
    return replace(
        AllocatorConfig.parse(large_segment[0] if large_segment else None),
        max_split_bytes=split if 0 < split < UNLIMITED else UNLIMITED,
        roundup_power2_divisions=divisions if any(divisions) else (),
        garbage_collection_threshold=float(settings.get("garbage_collection_threshold", 0.0)),
        expandable_segments=bool(settings.get("expandable_segments", False)),
    )


def history_events(snapshot: Mapping[str, Any], device: int = 0) -> Iterator[HistoryEvent]:
    """Yield the requests of a recorded trace for `replay`; a free counts once it's complete.

    Leaves out frees of memory allocated before the record. Raises EstimateError without a trace.
    """
    storages: dict[int, tuple[int, int, int]] = {}
    last = 0
    for index, entry in enumerate(device_trace(snapshot, device)):
        address = int(entry.get("addr", 0))
        if entry["action"] == "alloc":
            last += 1
            size, stream = int(entry["size"]), int(entry.get("stream", 0))
            storages[address] = (last, size, stream)
            yield HistoryEvent("alloc", last, size, index, stream)
        elif entry["action"] == "free_completed" and address in storages:
            storage, size, stream = storages.pop(address)
            yield HistoryEvent("free", storage, size, index, stream)


def score_history(
    snapshot: Mapping[str, Any],
    config: AllocatorConfig | None = None,
    *,
    device: int = 0,
    total_bytes: int | None = None,
) -> HistoryScore:
    """Repeat a recorded history in the simulation and compare.

    The default configuration is the recorded one. `total_bytes`, the device's memory, only decides
    how far an expandable segment can grow. Raises EstimateError if the snapshot has no trace for
    the device.
    """
    trace = device_trace(snapshot, device)
    initial = find_initial_state(snapshot, trace, device)
    scorer = _Scorer(config or config_from_snapshot(snapshot), initial, total_bytes)
    for index, entry in enumerate(trace):
        scorer.apply(index, entry)
    return scorer.score(snapshot, len(trace), device)


def device_trace(snapshot: Mapping[str, Any], device: int) -> list[dict[str, Any]]:
    """Return the trace of one device. Raises EstimateError if it's missing or empty."""
    traces = snapshot.get("device_traces") or []
    if not 0 <= device < len(traces) or not traces[device]:
        raise EstimateError(
            f"the snapshot has no history of device {device}: "
            "call torch.cuda.memory._record_memory_history() before the run"
        )
    return list(traces[device])


class _Scorer:
    """Runs the simulation in step with the record."""

    def __init__(
        self, config: AllocatorConfig, initial: InitialState, total_bytes: int | None
    ) -> None:
        self.recorded = RecordedSegments()
        self.allocator = RecordedAllocator(config, total_bytes, self.recorded)
        # With these settings only a part of the cache is released, and the device decides when.
        self.releases_partly = (
            config.max_split_bytes < UNLIMITED or config.garbage_collection_threshold > 0
        )
        self.numbers = restore(initial, self.allocator, self.recorded)
        self.opening_bytes = self.allocator.reserved
        self.compared = self.allocations = self.unknown_frees = self.ooms = 0
        self.reserved_mismatches = self.segment_mismatches = self.address_mismatches = 0
        self.worst_error = 0
        self.first_difference: Difference | None = None
        self.requested_free = -1
        """The address of the last `free_requested`; its completion follows at once or late."""
        self.late_frees: list[int] = []

    def apply(self, index: int, entry: Mapping[str, Any]) -> None:
        """Repeat one entry of the trace."""
        action = str(entry["action"])
        # An `oom` entry has no address.
        address, size = int(entry.get("addr", 0)), int(entry.get("size", 0))
        if action in _ADDS:
            self.recorded.add(address, size, expandable=_ADDS[action])
            return
        if action in _RELEASES:
            self.recorded.release(address, size, expandable=_RELEASES[action])
            return
        if action == "free_completed" and address != self.requested_free:
            # It waited for a stream: torch noticed that inside the request that follows.
            self.late_frees.append(address)
            self.requested_free = -1
            return
        self.requested_free = -1
        stream = int(entry.get("stream", 0))
        if action == "alloc":
            self._alloc(address, size, stream)
        else:
            self._catch_up()
        if action == "free_requested":
            self._request_free(address)
        elif action == "free_completed":
            self._complete_free(address)
        elif action == "oom":
            self._fail(size, stream)
        self._compare(index, action)

    def score(self, snapshot: Mapping[str, Any], entries: int, device: int) -> HistoryScore:
        """Return the score, with a comparison of the final state if the snapshot has one."""
        self._catch_up()
        self._compare(entries, "end")
        segments = [
            segment
            for segment in snapshot.get("segments") or []
            if int(segment.get("device", 0)) == device
        ]
        allocated = sum(int(segment["allocated_size"]) for segment in segments)
        has_end = "segments" in snapshot
        return HistoryScore(
            compared=self.compared,
            allocations=self.allocations,
            reserved_mismatches=self.reserved_mismatches,
            segment_mismatches=self.segment_mismatches,
            address_mismatches=self.address_mismatches,
            worst_reserved_error=self.worst_error,
            first_difference=self.first_difference,
            recorded_peak_reserved=self.recorded.peak_reserved,
            simulated_peak_reserved=self.allocator.peak_reserved,
            simulated_peak_allocated=self.allocator.peak_allocated,
            final_allocated=(allocated, self.allocator.allocated) if has_end else None,
            final_blocks_equal=self._has_blocks_of(segments) if has_end else None,
            opening_bytes=self.opening_bytes,
            unknown_frees=self.unknown_frees,
            ooms=self.ooms,
            private_segments=sum(
                tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0) for segment in segments
            ),
        )

    def _catch_up(self) -> None:
        """Repeat late frees and emptied caches, in torch's order."""
        self.allocator.on_miss = None
        for address in self.late_frees:
            self._complete_free(address)
        self.late_frees.clear()
        released = self.recorded.pop_released()
        if released and self.releases_partly and not self.allocator.config.expandable_segments:
            self.allocator.release(released)
        elif released:
            self.allocator.empty_cache()

    def _alloc(self, address: int, size: int, stream: int) -> None:
        self.allocations += 1
        if self.recorded.grew() and not self.allocator.has_cached(size, stream):
            # A retry: torch searched the cache before it completed frees and released segments.
            self.allocator.on_miss = self._catch_up
        else:
            self._catch_up()
        number = self.allocator.malloc(size, stream)
        stale = self.numbers.pop(address, None)
        if stale is not None:  # its free is missing from the record
            with suppress(EstimateError):
                self.allocator.request_free(stale)
            self.allocator.complete_free(stale)
        self.address_mismatches += self.allocator.address(number) != address
        self.numbers[address] = number
        self.recorded.finish_request()

    def _fail(self, size: int, stream: int) -> None:
        """Repeat a failed request: an expandable segment may have grown until memory ran out."""
        self.ooms += 1
        if self.recorded.grew():
            self.allocator.limit(self.recorded.reserved)
            with suppress(SimulatedOutOfMemory):
                self.allocator.free(self.allocator.malloc(size, stream))
            self.allocator.limit(None)
        self.recorded.finish_request()

    def _request_free(self, address: int) -> None:
        number = self.numbers.get(address)
        self.requested_free = address
        if number is None:
            self.unknown_frees += 1
        else:
            self.allocator.request_free(number)

    def _complete_free(self, address: int) -> None:
        number = self.numbers.pop(address, None)
        if number is not None:
            self.allocator.complete_free(number)

    def _compare(self, index: int, action: str) -> None:
        self.compared += 1
        reserved, recorded = self.allocator.reserved, self.recorded
        segments = self.allocator.stats.segment.all.current
        error = reserved - recorded.reserved
        self.reserved_mismatches += error != 0
        self.segment_mismatches += segments != recorded.segments
        if abs(error) > abs(self.worst_error):
            self.worst_error = error
        if self.first_difference is None and (error or segments != recorded.segments):
            self.first_difference = Difference(
                index, action, recorded.reserved, reserved, recorded.segments, segments
            )

    def _has_blocks_of(self, segments: list[dict[str, Any]]) -> bool:
        recorded = []
        for segment in segments:
            address = int(segment["address"])
            for block in segment["blocks"]:
                start, size = int(block.get("address", address)), int(block["size"])
                recorded.append((start, size, block["state"] != "inactive"))
                address += size
        return sorted(recorded) == [
            (block.address, block.size, block.busy) for block in self.allocator.all_blocks()
        ]
