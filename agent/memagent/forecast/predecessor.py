"""The last run of the same program: what it used by step, and how it ended.

1. It says something of growth only if it grew alike: its rise over the steps of the trend is within
   RISE_RATIOS of the trend's. A leak that's mended or new, or another batch size, isn't alike.
2. It *died* if it ran out of memory under a limit that was no smaller, or if its curve, put on top
   of what is used now, crosses the limit. Then that step is expected.
3. It *lived* if the rest of its curve fits, and it outlived the step for which the trend expects
   the end, or the plan's end. After its last step it says nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from memagent.forecast.projection import Projection
from memagent.forecast.types import Cause
from memagent.units import format_bytes

MAX_POINTS = 64
"""Points of a curve: 3 kB of JSON, and a trend is found in as many buckets. A choice."""
MIN_STEPS = 40
"""Steps of a run from which it says something: many die at once until they are set up."""
MIN_POINTS = 3
"""Points of the curve over which two runs are compared at least."""
RISE_RATIOS = (0.67, 1.5)
"""Rise of the predecessor over that of this run from which, and up to which, they grow alike.
Set on half of the simulated programs: from 0.5 to 2 changes nothing, 0.8 to 1.25 pages more."""
READ_CAUSES: tuple[Cause, ...] = ("leak", "input")
"""Growth that a curve shows."""
LIMIT_ERROR = 1.02
"""Limits differ by less between two GPUs of a kind."""
PLAN_ERROR = 1.02
"""A plan that exceeds the predecessor's by less ends with it."""

RunEnd = Literal["completed", "stopped", "failed", "oom"]
"""How a run ended whose end says something. One that fell silent may have died of anything."""
GrowthOutcome = Literal["lived", "died"]
_Step = Annotated[int, Meta(ge=0, lt=2**53)]
"""A count on the wire."""
_Bytes = Annotated[int, Meta(ge=1, lt=2**62)]
"""A size on the wire, above 0."""
_Steps = Annotated[tuple[_Step, ...], Meta(min_length=1, max_length=MAX_POINTS)]
"""A curve has a point."""
_Sizes = Annotated[tuple[int, ...], Meta(max_length=MAX_POINTS)]
"""A value for each step."""


class Predecessor(msgspec.Struct, frozen=True):
    """The last run of the same program on one device. Its curve has at most MAX_POINTS points.

    `steps`: the last step of each point. `floor_bytes`: held after it. `peak_bytes`: the most that
    was used in the point's steps.
    """

    run_id: str
    status: RunEnd
    last_step: _Step
    limit_bytes: _Bytes
    steps: _Steps
    floor_bytes: _Sizes
    peak_bytes: _Sizes
    is_same_commit: bool | None = None

    def __post_init__(self) -> None:
        if not len(self.steps) == len(self.floor_bytes) == len(self.peak_bytes):
            raise ValueError("A curve has as many floors and peaks as steps.")
        if any(second <= first for first, second in pairwise(self.steps)):
            raise ValueError("The steps of a curve increase.")

    @property
    def has_died(self) -> bool:
        return self.status == "oom"

    def sentence(self, outcome: GrowthOutcome | None) -> str:
        """Return how it ended. outcome: what became of the growth that both have, if so."""
        run = "The last run of this script and configuration"
        if self.has_died:
            path = " on the same path" if outcome == "died" else ""
            return f"{run} ran out of memory at step {self.last_step:,}{path}."
        peak = format_bytes(max(self.peak_bytes))
        if self.status == "completed":
            return f"{run} ended well at {peak}."
        return f"{run} lived until step {self.last_step:,}, at {peak}."

    def rise(self, first: float, last: float, *, is_input: bool) -> float:
        """Return by how much memory rose from one step to another; is_input: above the floor."""
        if not is_input:
            return self._at(last, self.floor_bytes) - self._at(first, self.floor_bytes)
        return self._excess(last) - self._excess(first)

    def rest_bytes(self, step: float) -> float:
        """Return by how much its peaks still rose after `step`."""
        place = bisect_left(self.steps, step)
        now = self._at(step, self.peak_bytes)
        return max(self.peak_bytes[place:], default=now) - now

    def step_of_rest(self, step: float, rest_bytes: float) -> float:
        """Return the step after which its peaks had risen by so many bytes since `step`."""
        size = self._at(step, self.peak_bytes) + rest_bytes
        before, low = step, size - rest_bytes
        for place in range(bisect_left(self.steps, step), len(self.steps)):
            reached, high = self.steps[place], self.peak_bytes[place]
            if high >= size:
                share = (size - low) / (high - low) if high > low else 0.0
                return before + share * (reached - before)
            before, low = reached, max(low, high)
        return float(self.last_step)

    def _excess(self, step: float) -> float:
        return self._at(step, self.peak_bytes) - self._at(step, self.floor_bytes)

    def _at(self, step: float, values: Sequence[int]) -> float:
        """Return the value at a step, on a straight line between two points."""
        place = bisect_left(self.steps, step)
        if place == 0:
            return values[0]
        if place == len(values):
            return values[-1]
        first, last = self.steps[place - 1], self.steps[place]
        share = (step - first) / (last - first)
        return values[place - 1] + share * (values[place] - values[place - 1])


class Expectation(msgspec.Struct, frozen=True):
    """The end of growth if this run goes on like its predecessor, and the step if it dies."""

    outcome: GrowthOutcome
    death_step: float | None = None


def expectation(
    predecessor: Predecessor,
    nearest: Projection,
    step: int,
    *,
    headroom_bytes: float,
    planned_steps_left: float,
) -> Expectation | None:
    """Return what the predecessor says of growth, None if it isn't alike (rules 1 to 3)."""
    if step >= predecessor.last_step or nearest.cause not in READ_CAUSES:
        return None
    if not _is_alike(predecessor, nearest, step):
        return None
    ratio = nearest.limit_bytes / predecessor.limit_bytes
    if predecessor.has_died and 1 / LIMIT_ERROR <= ratio <= LIMIT_ERROR:
        return Expectation("died", float(predecessor.last_step))
    # within the same limit the rest of a run that lived fits, whatever both differ by
    has_proof = not predecessor.has_died and ratio >= 1 / LIMIT_ERROR
    if not has_proof and predecessor.rest_bytes(step) > headroom_bytes:
        return Expectation("died", predecessor.step_of_rest(step, headroom_bytes))
    if predecessor.has_died:
        return None
    left = PLAN_ERROR * (predecessor.last_step - step)
    has_its_plan = planned_steps_left == inf or planned_steps_left <= left
    ends_with_it = predecessor.status == "completed" and has_its_plan
    return Expectation("lived") if ends_with_it or nearest.steps_left <= left else None


def _is_alike(predecessor: Predecessor, nearest: Projection, step: int) -> bool:
    """Return True if the predecessor rose as this run does (rule 1)."""
    # before its first point, the curve doesn't show how memory rose
    first = max(nearest.since_step, float(predecessor.steps[0]))
    points = bisect_left(predecessor.steps, step) - bisect_left(predecessor.steps, first)
    if points < MIN_POINTS:
        return False
    rise = nearest.rise_bytes * (step - first) / nearest.span_steps
    before = predecessor.rise(first, step, is_input=nearest.cause == "input")
    low, high = RISE_RATIOS
    return low * rise <= before <= high * rise


class Curve:
    """Points of a run's samples: at most twice MAX_POINTS at a time, whose width doubles."""

    def __init__(self) -> None:
        self._points: list[tuple[int, int, int]] = []
        self._width = 1
        self._rows = 0
        """Samples in the newest point."""

    def add(self, step: int, floor: int, peak: int) -> None:
        """Add a sample. One of an earlier step is left out: a script may count again from 0."""
        if self._points and step <= self._points[-1][0]:
            return
        if self._rows in (0, self._width):
            # full: pairs become one, so that a run of any length fits
            if len(self._points) == 2 * MAX_POINTS:
                self._points = _halves(self._points)
                self._width *= 2
            self._points.append((step, floor, peak))
            self._rows = 1
            return
        self._points[-1] = _merged(self._points[-1], (step, floor, peak))
        self._rows += 1

    def points(self) -> list[tuple[int, int, int]]:
        """Return (last step, floor after it, highest peak) of at most MAX_POINTS."""
        points = self._points
        return points if len(points) <= MAX_POINTS else _halves(points)


def _halves(points: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    pairs = [points[place : place + 2] for place in range(0, len(points), 2)]
    return [_merged(pair[0], pair[-1]) for pair in pairs]


def _merged(first: tuple[int, int, int], second: tuple[int, int, int]) -> tuple[int, int, int]:
    return second[0], second[1], max(first[2], second[2])
