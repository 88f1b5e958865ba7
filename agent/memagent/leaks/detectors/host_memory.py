"""Growth of Python objects outside torch, by tracemalloc. On request only: it slows small steps."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext as no_pause
from functools import partial

from memagent.components.live_objects import TensorReading, young_ids
from memagent.leaks.block_trace import BlockTrace
from memagent.leaks.census import MIN_SHARE
from memagent.leaks.container_suspects import suspects_of_containers
from memagent.leaks.cyclic_garbage import CyclicGarbage
from memagent.leaks.detectors.base import CodePosition, Detector, Work
from memagent.leaks.free_memory import BoundCheck
from memagent.leaks.growing_containers import ContainerCensus
from memagent.leaks.heap_trace import HeapTrace
from memagent.leaks.host_suspects import (
    MIN_GROWTH_SHARE,
    UNHELD_CONFIDENCE,
    growing_lines,
    lasting_lines,
    most_specific,
    rate_of,
    with_native,
    with_rates_up_to,
)
from memagent.leaks.limits import replaces_items
from memagent.leaks.native_growth import HalfWindow, untraced_growth
from memagent.leaks.native_suspects import suspects_of_trace
from memagent.leaks.object_sizes import newest_item
from memagent.leaks.time_budgets import TimeBudget
from memagent.leaks.trace_pause import clear_free_lists, untraced
from memagent.leaks.trace_schedule import TraceSchedule
from memagent.leaks.traced_blocks import (
    TracedBlocks,
    allocation_site,
    blocks_by_line,
    bytes_by_line,
    growing_stacks,
    size_of_blocks,
    steady_tensors,
    traceback_of,
    traced_blocks,
    traced_tensor_bytes,
)
from memagent.leaks.traced_holders import (
    candidates_of_lines,
    holders_of_lines,
    sites_in_old_entries,
)
from memagent.probe.heap import heap_reader, native_reader
from memagent.wire.messages import DiagnosisMethod, Suspect

MIN_MORE_BLOCKS = 1.25
"""Blocks of a line that makes more and more of them, as a multiple of those halfway: it's 2."""
_FREE_LIST_BYTES = 2**18
"""What a garbage collection may free of the interpreter's lists of free objects."""


class HostMemoryDetector(Detector):
    """Traces over one window. Does nothing if the script already uses tracemalloc.

    sites: gets the tensors per step that each line of the script makes and something keeps. A small
    step takes two to five times as long while tracemalloc runs, and one that makes many objects 20
    times: `schedule` limits that.

    1. `begin` starts tracing, a few frames per block. Earlier allocations aren't seen.
    2. `middle` notes what each line holds: by then caches are filled and the loop is steady.
    3. Up to the step before the last, the heap is read at each line of the script (`heap_trace`).
    4. `near_end` looks for what keeps the objects of the lines that hold more by then, one a step.
    5. `before_last` notes that again, and traces anew: what is traced at the end is new.
       Lines don't count if the process hasn't allocated more: what they make replaces older items
       that weren't traced.
    6. `end` suspects the containers that grew (`growing_containers`). If they explain less than
       half of the growth, it also suspects the lines of the script that hold more than in the
       middle, unless the last step alone allocated more there: an input that is longer each time,
       or a list that is cleared now and then. Native memory that grows by more is suspected first
       (`native_suspects`).

    Garbage is collected before the readings of the middle and of all but the last step, since
    reference cycles that wait for it are no leak. So objects that are still young at the end are
    new, too. If only old ones wait, a line without a holder tells it: what is freed then was its.
    """

    method: DiagnosisMethod = "host"

    def __init__(
        self,
        sites: dict[CodePosition, float] | None = None,
        bounds: BoundCheck | None = None,
        schedule: TraceSchedule | None = None,
    ) -> None:
        self._bounds = bounds or BoundCheck()
        self._blocks = BlockTrace(schedule)
        self._is_active = False
        """False if the script uses tracemalloc."""
        self._first_traced_steps = 0
        self._middle_step = 0
        self._middle: TracedBlocks = {}
        self._middle_tensors: Counter[CodePosition] = Counter()
        self._tensor_bytes = 0
        self._first_step = 0
        self._first_bytes: int | None = None
        self._first_half = HalfWindow(0, 0, 0)
        self._untraced_rate = 0
        self._middle_bytes: int | None = None
        """Bytes allocated in the middle."""
        self._last_bytes: int | None = None
        """The same one step before the end."""
        self._search_bytes = 0
        """Bytes that the search itself has kept since the middle: no growth of the script."""
        self._growth_rate = 0.0
        """Bytes per step by which what is allocated has grown since then."""
        self._max_rate: float = math.inf
        """Bytes per step by which anything can have grown since then."""
        self._garbage = CyclicGarbage()
        self._lines: list[Suspect] = []
        self._early_lines: list[Suspect] | None = None
        """Lines that are likely to be among them, whose holders are still to be found."""
        self._lengthening: set[CodePosition] = set()
        self._looked_for: set[CodePosition] = set()
        self._holders: dict[CodePosition, Suspect | None] = {}
        self._in_entries: set[CodePosition] = set()
        """Lines that make what old entries of a table get."""
        self._heap = heap_reader()
        self._trace: HeapTrace | None = None
        self._containers = ContainerCensus()
        self._sites: dict[CodePosition, float] = {} if sites is None else sites

    def begin(self, step: int) -> None:
        self._first_step = step
        self._containers.begin(step)
        if not tracemalloc.is_tracing():
            self._is_active = True
            self._blocks.start()
            self._tensor_bytes = traced_tensor_bytes()
            self._first_bytes = self._allocated_bytes()

    def prepare(self, step: int) -> None:
        self._containers.prepare()
        # before the middle: together, the two take the longest of all boundaries
        if self._is_active and not self._middle_step:
            self._garbage.collect(step - self._first_step)

    def read_tensors(self) -> TensorReading:
        """Read all tensors. Note the lengths of containers by the same pass, in its thread."""
        with untraced():
            return self._containers.note()

    def middle(self, step: int) -> None:
        if self._is_active:
            self._garbage.collect(step - self._first_step)
            self._middle_step = step
            growth = (self._allocated_bytes() or 0) - (self._first_bytes or 0)
            self._containers.middle(step)
            blocks, tensors = traced_blocks(self._tensor_bytes)
            steps = step - self._first_step
            self._first_traced_steps = self._blocks.traced_steps(steps)
            size = size_of_blocks(blocks) * steps // self._first_traced_steps
            self._first_half = HalfWindow(steps, growth, size)
            self._middle = blocks
            self._middle_tensors = tensors
            clear_free_lists()  # of what the readings have freed, untraced
            self._middle_bytes = self._allocated_bytes()  # with what the readings keep
            if (read := native_reader()) is not None:
                self._trace = HeapTrace(read)
                self._trace.start()
            self._blocks.begin_half()

    def after_step(self, took_s: float | None = None) -> None:
        if self._trace is not None:
            earlier_s = self._trace.spent_s
            self._trace.end_step()
            took_s = took_s and took_s - (self._trace.spent_s - earlier_s)
        self._blocks.end_step(took_s)
        self.slow_down_s = self._blocks.schedule.slow_down_s

    def near_end(self, step: int) -> None:
        if not self._middle_step or not self._blocks.is_active or self._early_lines == []:
            return
        steps, pause = step - self._middle_step, self._trace.paused() if self._trace else no_pause()
        before = self._allocated_bytes() or 0
        with pause, self._garbage.own():
            if self._early_lines is None:
                last, _ = traced_blocks(self._tensor_bytes)
                self._early_lines = self._growing_lines(last, steps)
            else:
                self._find_holders([self._early_lines.pop(0)], steps)
        self._search_bytes += max(0, (self._allocated_bytes() or 0) - before)

    def before_last(self, step: int) -> None:
        if not self._is_active or step <= self._middle_step or not self._middle_step:
            return
        self._stop_trace()
        self._garbage.collect(step - self._first_step)
        steps, now_bytes = step - self._middle_step, self._allocated_bytes()
        self._last_bytes = now_bytes
        growth = None
        if self._middle_bytes is not None and now_bytes is not None:
            growth = now_bytes - self._middle_bytes - self._search_bytes
            self._growth_rate = growth / steps
            self._max_rate = max(0, growth + _FREE_LIST_BYTES) / steps
        if self._blocks.is_active:
            self._read_blocks(steps, growth)
            self._blocks.start()

    def _read_blocks(self, steps: int, growth: int | None) -> None:
        """Find the lines that hold more than in the middle, and what keeps it. End the trace."""
        last, tensors = traced_blocks(self._tensor_bytes)
        self.grown = growing_stacks(self._middle, last)
        if growth is not None:
            traced_steps = self._blocks.traced_steps(steps)
            size = size_of_blocks(last) - size_of_blocks(self._middle)
            second = HalfWindow(steps, growth, size * steps // traced_steps)
            self.native_bytes_per_step = untraced_growth(self._first_half, second)
            # also if it may end: what grows by little of it isn't worth a word
            self._untraced_rate = second.untraced_rate if second.is_mostly_native else 0
        traced_steps = self._blocks.traced_steps(steps)
        first_steps = self._first_traced_steps
        self._sites.update(steady_tensors(tensors, self._middle_tensors, traced_steps, first_steps))
        self._lines = [
            item
            for item in self._growing_lines(last, steps)
            if self._max_rate >= MIN_SHARE * (item.bytes_per_step or 0)
        ]
        self._find_holders(self._lines, steps)
        self._blocks.stop()

    def _growing_lines(self, last: TracedBlocks, steps: int) -> list[Suspect]:
        traced_steps = self._blocks.traced_steps(steps), self._first_traced_steps
        # a text that is lengthened stays one block, in a dict that stays as long
        earlier, now = blocks_by_line(self._middle), blocks_by_line(last)
        self._lengthening = {site for site in now if now[site] < MIN_MORE_BLOCKS * earlier[site]}
        return growing_lines(bytes_by_line(self._middle), bytes_by_line(last), *traced_steps)

    def _find_holders(self, lines: Sequence[Suspect], steps: int) -> None:
        """Find what keeps what each of the lines has made, while that is traced."""
        lines = [item for item in lines if (item.file, item.line or 0) not in self._looked_for]
        self._looked_for.update((item.file, item.line or 0) for item in lines)
        growth_of = self._containers.growth_of
        candidates = candidates_of_lines(lines, growth_of, self._lengthening)
        entries = sites_in_old_entries(candidates, self._containers.has_more)
        self._in_entries.update(entries)
        self._holders |= holders_of_lines(
            lines, candidates, self._bounds, growth_of, steps, entries
        )

    def _replaces(self, line: Suspect) -> bool:
        """Return True if what a line makes may replace as much, which was allocated before.

        What the entries of a table get doesn't if all that is allocated has grown as well.
        """
        if (line.file, line.line or 0) in self._in_entries:
            return self._growth_rate < MIN_SHARE * rate_of(line)
        return replaces_items(line.file, line.line or 0)

    def search(self, step: int, budget: TimeBudget) -> Work[list[Suspect]]:
        if not self._is_active or not self._middle_step or budget.is_over():
            return []
        young = young_ids()  # before the readings make objects that age them
        last_step = bytes_by_line(traced_blocks()[0])
        containers = self._containers.end(step, young, is_new=traceback_of)
        sites = [allocation_site(partial(newest_item, item.container)) for item in containers]
        self._blocks.stop()
        lines = lasting_lines(self._lines, last_step, self._replaces)
        named, bounded = yield from suspects_of_containers(
            containers, sites, lines, self._bounds, budget
        )
        named = with_rates_up_to(self._max_rate, named)
        holders = {**self._holders, **dict.fromkeys(bounded - self._holders.keys())}
        suspects = most_specific(named, lines, holders)
        least = MIN_GROWTH_SHARE * self._untraced_rate
        suspects = [item for item in suspects if not item.bytes_per_step or rate_of(item) >= least]
        suspects = self._without_garbage(suspects, step)
        trace, self._trace = self._trace, None
        native = [] if trace is None else suspects_of_trace(trace, suspects)
        return with_native(suspects, native)

    def _without_garbage(self, suspects: list[Suspect], step: int) -> list[Suspect]:
        """Drop lines without a holder if collections free most of what they have made."""
        if self._last_bytes is None or not any(
            item.confidence == UNHELD_CONFIDENCE for item in suspects
        ):
            return suspects
        steps = step - self._middle_step
        spare = 0 if self._garbage.collect_old(steps) else _FREE_LIST_BYTES
        freed = self._last_bytes - spare - (self._allocated_bytes() or 0)
        return [
            item
            for item in suspects
            if item.confidence != UNHELD_CONFIDENCE or rate_of(item) * steps > 2 * freed
        ]

    def close(self) -> None:
        self._blocks.stop()
        self._is_active = False
        self._stop_trace()
        self._trace = None
        self._middle_step = self._search_bytes = 0
        self._max_rate = math.inf
        self._middle = {}
        self._middle_tensors = Counter()
        self._lines = []
        self._early_lines = None
        self._looked_for = set()
        self._holders = {}
        self._in_entries = set()
        self._sites = {}
        self._containers = ContainerCensus()

    def _allocated_bytes(self) -> int | None:
        """Return what the process has allocated, but for the trace; None if unknown."""
        return None if self._heap is None else self._heap() - tracemalloc.get_tracemalloc_memory()

    def _stop_trace(self) -> None:
        if self._trace is not None:
            self._trace.stop()
            self.thread_s = self._trace.spent_s
