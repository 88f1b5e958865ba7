"""Threads that pile up: each keeps its variables for as long as it waits, in `queue.put` or else.

Count threads, and the script's functions that they run, at the beginning, in the middle and at the
end of the window. A pool's threads also run such functions, but don't become more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType

from memagent.components import safe_reads
from memagent.leaks.census import MIN_SHARE
from memagent.leaks.detectors.base import Detector
from memagent.leaks.suspect import build_suspect
from memagent.leaks.time_budgets import TimeBudget
from memagent.leaks.user_code import script_code
from memagent.wire.messages import Suspect

MIN_BYTES_PER_STEP = 1024
_MIN_THREADS = 2
_CONFIDENCE = 0.8


@dataclass(frozen=True)
class ThreadCount:
    """Number of threads, and how many of them run each function of the script."""

    step: int
    threads: int
    functions: Counter[CodeType]


def count_threads(step: int) -> ThreadCount:
    """Return the threads that run now."""
    functions = Counter(item.code for item in script_code() if not item.is_module)
    return ThreadCount(step, len(safe_reads.thread_ids()), functions)


def is_steady(first: int, middle: int, last: int, late_share: float) -> bool:
    """Return True if a count rose in both parts of the window. late_share: that of the second."""
    late, early = last - middle, middle - first
    growth = late + early
    rises = growth >= _MIN_THREADS and min(late, early) > 0
    return rises and late >= MIN_SHARE * late_share * growth


class ThreadDetector(Detector):
    """`growth` returns by how much memory in use grew per step up to one, None if unknown."""

    def __init__(self, growth: Callable[[int], int | None]) -> None:
        self._growth = growth
        self._counts: list[ThreadCount] = []

    def begin(self, step: int) -> None:
        self._counts = [count_threads(step)]

    def middle(self, step: int) -> None:
        self._counts.append(count_threads(step))

    def end(self, step: int, budget: TimeBudget) -> list[Suspect]:
        if len(self._counts) < 2:
            return []
        now, rate = count_threads(step), self._growth(step)
        if rate is not None and rate < MIN_BYTES_PER_STEP:
            return []
        first, middle = self._counts[:2]
        return _suspects(growing_functions(first, middle, now), now, rate)


def growing_functions(
    first: ThreadCount, middle: ThreadCount, last: ThreadCount
) -> frozenset[CodeType]:
    """Return the functions that more and more threads run, if the threads themselves are more."""
    late_share = (last.step - middle.step) / max(1, last.step - first.step)
    if not is_steady(first.threads, middle.threads, last.threads, late_share):
        return frozenset()
    old, half, new = first.functions, middle.functions, last.functions
    return frozenset(
        code for code in new if is_steady(old[code], half[code], new[code], late_share)
    )


def _suspects(growing: frozenset[CodeType], now: ThreadCount, rate: int | None) -> list[Suspect]:
    """Return the line at which most of the threads wait, in the innermost of the functions."""
    running = [item for item in script_code() if item.code in growing and item.line]
    if not running:
        return []
    code = running[0].code
    line = Counter(item.line for item in running if item.code is code).most_common(1)[0][0]
    name = getattr(code, "co_qualname", code.co_name)  # co_qualname: Python 3.11
    text = f"{now.functions[code]} threads that run {name}"
    file = code.co_filename
    return [build_suspect(file, line or 0, name, text, "thread", rate, _CONFIDENCE)]
