"""Growth outside of Python: which calls of the script allocate what stays, by a trace of the heap.

One line often frees the memory of another: `backward` frees activations, the loop an old batch.
These cancel, so the line that leaks grows by as much as the process does. So does each call on the
way to it, since nothing frees the memory before they return:

1. The process must grow steadily, in both halves of the trace. Its first step and its last one
   don't count: the diagnosis itself allocates in them.
2. If a single line that calls a library other than torch grows by as much, it's that one. The
   calls on the way to it may grow by more, since they may also make tensors.
3. Else follow the only call that grows by as much, from the outermost to the innermost. Of several,
   follow the one that calls a library other than torch, if there is one such.
4. Growth that only the loop explains, and no call of a step, has no path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from memagent.leaks.detectors.base import CodePosition
from memagent.leaks.heap_trace import LineStack

MIN_STEPS = 5
"""Steps below which a trace shows nothing."""
MIN_BYTES_PER_STEP = 16 * 2**10
"""Growth from which it's reported and looked for. A step of a clean script had up to 10 KiB."""
MIN_FIT, MAX_FIT = 0.7, 1.4
"""Growth of a call on the way, as a share of the process's. Two leaks of a size have no line."""
MIN_HALF_SHARE = 0.5
"""Least growth of each half of the trace, as a share of the mean."""

Growth = tuple[float, float]
"""Bytes per step of the first and of the second half."""


@dataclass(frozen=True)
class NativeGrowth:
    """Growth of native memory. path: calls that lead to it, outermost first, if it has one."""

    path: LineStack
    bytes_per_step: int
    is_certain: bool = True
    """False if several lines fit, and the last of the path calls them."""


@dataclass(frozen=True)
class HalfWindow:
    """Growth in a half of a window: of all that is allocated, and of what Python has traced."""

    steps: int
    allocated_bytes: int
    traced_bytes: int

    @property
    def untraced_rate(self) -> int:
        """Return the bytes per step that Python hasn't traced."""
        untraced = self.allocated_bytes - max(0, self.traced_bytes)
        return untraced // max(1, self.steps)

    @property
    def is_mostly_native(self) -> bool:
        """Return True if that is most of the growth."""
        return 2 * self.untraced_rate * self.steps >= self.allocated_bytes


def untraced_growth(first: HalfWindow, second: HalfWindow) -> int | None:
    """Return the bytes per step by which native memory grew, if that is most of the growth.

    It must have grown in both halves: what a warm-up or an evaluation allocates is in one.
    """
    rate, earlier = second.untraced_rate, first.untraced_rate
    is_steady = min(rate, earlier) >= MIN_HALF_SHARE * (rate + earlier) / 2
    is_growth = rate >= MIN_BYTES_PER_STEP and second.is_mostly_native
    return rate if is_growth and is_steady else None


def native_growth(
    steps: Sequence[Mapping[LineStack, int]],
    start: LineStack,
    is_likely: Callable[[CodePosition], bool],
) -> NativeGrowth | None:
    """Return the growth with its path, None if it isn't steady.

    steps: bytes that each stack allocated, less what it freed. start: lines that run for longer
    than a step. is_likely: returns whether a line calls a library other than torch.
    """
    steps = steps[1:-1]
    total = _halves([sum(step.values()) for step in steps])
    rate = sum(total) / 2
    if len(steps) < MIN_STEPS or rate < MIN_BYTES_PER_STEP or not _fits(total, rate):
        return None
    own = {stack: _halves([step.get(stack, 0) for step in steps]) for stack in set().union(*steps)}
    fitting = [stack for stack, item in own.items() if stack and _fits(item, rate)]
    lines = [stack for stack in fitting if is_likely(stack[-1])]
    if len(lines) == 1:
        return NativeGrowth(lines[0], round(rate))
    path: LineStack = ()
    while True:
        children = [item for item, growth in _calls(steps, path).items() if _fits(growth, rate)]
        likely = [item for item in children if is_likely(item)]
        follow = children if len(children) == 1 else likely
        if len(follow) != 1:
            break
        path = (*path, *follow)
    is_loop = path == start[: len(path)]
    return NativeGrowth(() if is_loop else path, round(rate), not children)


def _calls(steps: Sequence[Mapping[LineStack, int]], path: LineStack) -> dict[CodePosition, Growth]:
    """Return the growth by the calls that the last line of a path makes."""
    depth = len(path)
    series: defaultdict[CodePosition, list[int]] = defaultdict(lambda: [0] * len(steps))
    for number, step in enumerate(steps):
        for stack, size in step.items():
            if len(stack) > depth and stack[:depth] == path:
                series[stack[depth]][number] += size
    return {position: _halves(sizes) for position, sizes in series.items()}


def _halves(sizes: Sequence[int]) -> Growth:
    middle = len(sizes) // 2
    first, second = _mean(sizes[:middle]), _mean(sizes[middle:])
    return first, second


def _mean(sizes: Iterable[int]) -> float:
    known = list(sizes)
    return sum(known) / max(1, len(known))


def _fits(growth: Growth, rate: float) -> bool:
    """Return True for growth by the rate of the process, in both halves."""
    is_steady = min(growth) >= MIN_HALF_SHARE * rate
    return is_steady and MIN_FIT * rate <= sum(growth) / 2 <= MAX_FIT * rate
