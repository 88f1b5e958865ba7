"""Readings of tracemalloc: blocks by call stack, tensors by line, and the line of an object."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

from memagent.components import safe_reads
from memagent.leaks.census import MIN_SHARE
from memagent.leaks.detectors.base import CodePosition, StackAllocation, script_position
from memagent.leaks.user_code import is_own, is_script

_MAX_LEVELS = 3
_MAX_PARTS = 64
_MIN_TEXT = 256
"""Length of a text that was made for what refers to it, and is no name."""

_SIZE_OF, _FRAMES_OF = itemgetter(1), itemgetter(2)
"""Of a trace: (domain, bytes, frames, number of all frames)."""

TracedBlocks = dict[tuple[CodePosition, ...], tuple[int, int]]
"""Bytes and blocks by call stack, outermost position first."""

# of the module behind tracemalloc, whose own function is in Python
traceback_of: Any = tracemalloc._get_object_traceback  # type: ignore[attr-defined]


def _is_own_allocation(positions: tuple[CodePosition, ...]) -> bool:
    """Return True if memagent made it, called by the script or by a diagnosis: not a leak.

    Generated code, such as a named tuple's constructor, counts as its caller's.
    """
    for file, _ in reversed(positions):
        if is_own(file):
            return True
        if is_script(file) and not file.startswith("<"):
            return False
    return False


def traced_tensor_bytes() -> int:
    """Return the size of the block that Python allocates for a tensor."""
    torch = sys.modules.get("torch")
    if torch is None:
        return 0
    # a subclass or mode of the script must not see this
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        before = tracemalloc.get_traced_memory()[0]
        tensor = torch.empty(0)
        size = tracemalloc.get_traced_memory()[0] - before
    del tensor
    return size


def traced_blocks(tensor_bytes: int = 0) -> tuple[TracedBlocks, Counter[CodePosition]]:
    """Return what is traced, and the tensors alive by the line of the script that made them.

    tensor_bytes: tracemalloc doesn't know the block of a tensor, but its blocks have their size.
    """
    # As tuples: a snapshot makes an object of each trace and of each of its frames. In C, without
    # an object for each block: while tracemalloc runs, each one takes microseconds.
    traces = tracemalloc._get_traces()  # type: ignore[attr-defined]
    sizes: defaultdict[tuple[CodePosition, ...], list[int]] = defaultdict(list)
    lists = map(sizes.__getitem__, map(_FRAMES_OF, traces))
    deque(map(list.append, lists, map(_SIZE_OF, traces)), maxlen=0)
    del traces
    blocks: TracedBlocks = {}
    tensors = Counter[CodePosition]()
    for frames, block_sizes in sizes.items():
        positions = frames[::-1]
        if _is_own_allocation(positions):  # such as the trace's notes of a line
            continue
        size, count = sum(block_sizes), len(block_sizes)
        tensor_count = block_sizes.count(tensor_bytes)
        if tensor_count and (line := script_position(positions)) is not None:
            tensors[line] += tensor_count
        known_size, known_count = blocks.get(positions, (0, 0))
        blocks[positions] = known_size + size, known_count + count
    return blocks, tensors


def bytes_by_line(traced: TracedBlocks) -> Counter[CodePosition]:
    """Return bytes by the innermost line of the script."""
    return _sums_by_line(traced, 0)


def blocks_by_line(traced: TracedBlocks) -> Counter[CodePosition]:
    """Return the number of blocks by the innermost line of the script."""
    return _sums_by_line(traced, 1)


def _sums_by_line(traced: TracedBlocks, part: int) -> Counter[CodePosition]:
    sums: Counter[CodePosition] = Counter()
    for positions, numbers in traced.items():
        if (line := script_position(positions)) is not None:
            sums[line] += numbers[part]
    return sums


def growing_stacks(first: TracedBlocks, last: TracedBlocks) -> list[StackAllocation]:
    """Return the growth of each stack that passes through the script, most bytes first."""
    grown = []
    for positions, (size, blocks) in last.items():
        old_size, old_blocks = first.get(positions, (0, 0))
        stack = tuple((file, line, "") for file, line in positions)
        allocation = StackAllocation(stack, size - old_size, blocks - old_blocks)
        if allocation.size_bytes > 0 and allocation.script_frame is not None:
            grown.append(allocation)
    return sorted(grown, key=lambda allocation: -allocation.size_bytes)


def steady_tensors(
    last: Counter[CodePosition], first: Counter[CodePosition], steps: int, first_steps: int
) -> dict[CodePosition, float]:
    """Return the tensors per step that remain of each line, if they did so in both halves."""
    rates = {line: (count - first[line]) / max(1, steps) for line, count in last.items()}
    return {
        line: rate
        for line, rate in rates.items()
        if rate > 0 and first[line] >= MIN_SHARE * rate * first_steps
    }


def size_of_blocks(blocks: TracedBlocks) -> int:
    return sum(size for size, _ in blocks.values())


def allocation_site(newest: Callable[[], Iterable[Any]]) -> CodePosition | None:
    """Return the innermost line of the script that made an object, None if it wasn't traced.

    newest: returns an iterator in C over the object.
    """
    # Python 3.11 doesn't find the trace of an instance, and a short tuple may be in an old block;
    # what they refer to has one
    # one call in C for the object itself
    for frames in list(filter(None, map(traceback_of, newest()))):
        if (site := script_position(frames[::-1])) is not None:
            return site
    objects = safe_reads.items_of(newest()).others
    for _ in range(_MAX_LEVELS):
        for part in objects[:_MAX_PARTS]:
            frames = tracemalloc.get_object_traceback(part) or ()
            site = script_position([(frame.filename, frame.lineno) for frame in frames])
            if site is not None:
                return site
        parts = safe_reads.parts_of(*objects[:_MAX_PARTS]).others
        objects = [
            part
            for part in parts
            if (gc.is_tracked(part) or _is_large(part)) and type(part) is not type
        ]
    return None


def _is_large(item: Any) -> bool:
    return type(item) in (str, bytes) and len(item) >= _MIN_TEXT
