"""Whole numbers kept in order, with fast "the first that is at least this".

Like the ordered tree behind torch's pools, but as a list of short sorted lists: in CPython, moving a thousand pointers is
quicker than walking a tree, and with half a million free blocks one change still touches two short lists only.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

_LONGEST = 1024


class OrderedNumbers:
    """A set of whole numbers in ascending order; none below zero."""

    __slots__ = ("_lasts", "_runs")

    def __init__(self) -> None:
        self._runs: list[list[int]] = []  # each sorted and not empty, one after the other
        self._lasts: list[int] = []  # the largest number of each run

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def __iter__(self) -> Iterator[int]:
        """All numbers in order; take a copy before changing the set inside the loop."""
        for run in self._runs:
            yield from run

    def add(self, number: int) -> None:
        """Put in a number that is not there yet."""
        lasts = self._lasts
        where = bisect_left(lasts, number)
        if where == len(lasts):
            if not lasts:
                self._runs.append([number])
                lasts.append(number)
                return
            where -= 1
            lasts[where] = number
        run = self._runs[where]
        insort(run, number)
        if len(run) > _LONGEST:
            half = len(run) // 2
            self._runs.insert(where + 1, run[half:])
            del run[half:]
            lasts.insert(where, run[-1])

    def remove(self, number: int) -> None:
        """Take out a number; it must be there."""
        where = bisect_left(self._lasts, number)
        run = self._runs[where]
        del run[bisect_left(run, number)]
        if not run:
            del self._runs[where], self._lasts[where]
        else:
            self._lasts[where] = run[-1]

    def at_least(self, number: int) -> int:
        """The smallest number that is `number` or more; -1 when there is none."""
        where = bisect_left(self._lasts, number)
        if where == len(self._lasts):
            return -1
        run = self._runs[where]
        return run[bisect_left(run, number)]

    def largest(self) -> int:
        """The largest number; -1 when empty."""
        return self._lasts[-1] if self._lasts else -1
