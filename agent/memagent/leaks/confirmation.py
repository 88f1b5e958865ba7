"""Confirmation and withdrawal of suspects: a cache that fills up looks like a leak at first.

1. If the source has a limit for the first suspect (`limits`), a diagnosis over a longer window
   follows, and only its result counts. If the run ends before, the first one does, unless its
   tensors have stopped becoming more.
2. Later censuses show whether the tensors of a diagnosis still become more. If none of its groups
   does, its suspects are withdrawn, but for those of other evidence.
3. Suspects of host memory are withdrawn if what is allocated grows by much less than they say.
4. A table that is filled by key is withdrawn earlier: if it grows more slowly than at first. Of a
   leak, each key is new, so it doesn't slow down.
5. A suspect of tensors that was withdrawn doesn't return before there are as many as if it had gone
   on growing up to then: a list that is emptied now and then grows as steadily in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from memagent.components import live_objects
from memagent.leaks import census, limits
from memagent.leaks.census import MAX_SLOW_SHARE, Census, GroupCount, TensorGroup
from memagent.leaks.suspect import Diagnosis
from memagent.leaks.suspension import Survey
from memagent.leaks.window import ReadingWindow
from memagent.wire.messages import Suspect

CONFIRMING_STEPS = 80
"""Window for a suspect that may stop growing: four times as long as what it grew in."""
COUNTED_KINDS = frozenset(
    (
        *("list", "dict", "deque", "set", "object", "hook", "closure", "exception", "cache"),
        *("view", "optimizer", "dataloader", "autograd_function", "allocation"),
    )
)
"""Kinds of suspects whose tensors become more."""


HOST_KINDS = frozenset(("host",))
_MIN_END_SHARE, _MIN_LIMIT_SHARE = 0.6, 0.4
"""Share of a diagnosis' window that must have passed without growth at the end of a run, and if the
source has a limit for what grows."""
_MIN_EXPECTED = 4
"""Tensors that would have been added in the shorter time."""
_MAX_NOTES = 16
MIN_HOST_SHARE = 0.25
"""Share of the growth of its suspects by which allocated memory grows if they still do."""


def is_unsure(suspects: Sequence[Suspect], window: ReadingWindow, confirming_steps: int) -> bool:
    """Return True if a longer window is to confirm the first suspect."""
    is_short = window.request.steps < confirming_steps
    first = next(iter(suspects), None)
    if first is None or not is_short or window.bounds.is_beyond(first):
        return False
    return limits.may_stop_growing(first)


def without(diagnosis: Diagnosis, kinds: frozenset[str]) -> tuple[Diagnosis, tuple[Suspect, ...]]:
    """Return the diagnosis without suspects of these kinds, and those suspects."""
    stopped = tuple(item for item in diagnosis.suspects if item.kind in kinds)
    rest = tuple(item for item in diagnosis.suspects if item.kind not in kinds)
    return replace(diagnosis, suspects=rest, grown=()), stopped


Reading = tuple[int, int | None]
"""A step, and the bytes in use after it, None if unknown."""


class HostGrowthCheck:
    """Compares the growth of allocated memory with what suspects of host memory say.

    used_bytes: at `step`, None if unknown. It has stopped if it grew by less than MIN_HOST_SHARE of
    their rate both since then and since the last check, or between two checks in a row: a cache
    that was full at half of the run has grown a lot since. One check isn't enough: something else
    may have been freed. table_bytes_per_step: measured growth, if the suspects are tables that are
    filled by key. These must go on with most of the smaller one of both rates. burst_steps: those
    whose growth may come at once, and so may be missing between two checks.
    """

    def __init__(
        self,
        suspects: Sequence[Suspect],
        step: int,
        used_bytes: int | None,
        table_bytes_per_step: int | None = None,
        burst_steps: int = 0,
    ) -> None:
        rates = [item.bytes_per_step or 0 for item in suspects if item.kind in HOST_KINDS]
        rate = max(rates, default=0)
        self._min_rate = MIN_HOST_SHARE * rate
        self._table_rate = min(rate, table_bytes_per_step or 0)
        self._burst_steps = burst_steps
        self._first = self._last = (step, used_bytes)
        self._checks = self._flat_checks = 0

    def __bool__(self) -> bool:
        return self._min_rate > 0 and self._first[1] is not None

    def has_stopped(self, step: int, used_bytes: int | None) -> bool:
        """Compare with what is allocated now."""
        earlier, self._last = self._last, (step, used_bytes)
        self._checks += 1
        self._flat_checks = 0 if self._grew(earlier, step, used_bytes) else self._flat_checks + 1
        is_flat = not self._grew(self._first, step, used_bytes) or self._flat_checks > 1
        return self._checks > 1 and self._flat_checks > 0 and is_flat

    def is_full(self, step: int, used_bytes: int | None, window_steps: int) -> bool:
        """Return True if this check at the end of the run confirms the last one.

        Memory that was freed at the end is no evidence.
        """
        last_step, last_bytes = self._last
        if used_bytes is None or last_bytes is None:
            return False
        is_late = step - last_step >= _MIN_END_SHARE * window_steps
        freed = last_bytes - used_bytes
        return (
            is_late
            and freed <= self._min_rate * window_steps
            and self.has_stopped(step, used_bytes)
        )

    @property
    def may_have_stopped(self) -> bool:
        """Return True if the last check saw hardly any growth, which the next one may confirm."""
        return self._flat_checks > 0

    def _grew(self, since: Reading, step: int, used_bytes: int | None) -> bool:
        steps = max(1, step - since[0])
        table_share = min(MAX_SLOW_SHARE, 1 - self._burst_steps / steps)
        least = max(self._min_rate, table_share * self._table_rate)
        return has_grown(since, (step, used_bytes), least)


def has_grown(since: Reading, now: Reading, min_rate: float) -> bool:
    """Return True if memory in use has grown by that many bytes a step, or is unknown."""
    (first_step, first_bytes), (step, used_bytes) = since, now
    if first_bytes is None or used_bytes is None:
        return True
    return used_bytes - first_bytes >= min_rate * (step - first_step)


class GrowthCheck:
    """Checks whether the groups of tensors that grew in a diagnosis still do.

    is_keyed: they are in a table that is filled by key.
    """

    def __init__(self, counts: Sequence[GroupCount] = (), *, is_keyed: bool = False) -> None:
        self._counts = tuple(counts)
        self._is_keyed = is_keyed
        self._notes: deque[tuple[GroupCount, ...]] = deque(maxlen=_MAX_NOTES)
        """The newest counts, also from between two checks."""
        self._survey: Survey | None = None

    def __bool__(self) -> bool:
        return bool(self._counts)

    def goes_on(self, later: Census | None) -> bool:
        """Return True if a group has grown up to a later census."""
        return later is not None and any(self._goes_on(count, later) for count in self._counts)

    def _goes_on(self, count: GroupCount, later: Census) -> bool:
        has_slowed = self._is_keyed and count.has_slowed_since(later)
        return count.has_grown_since(later) and not has_slowed

    def expected(self, step: int) -> dict[TensorGroup, float]:
        """Return how many tensors each group would have after `step` if it had gone on growing."""
        return {
            count.group: count.count + count.per_step * (step - count.step)
            for count in self._counts
        }

    def prepare(self) -> bool:
        """Begin a census. Return False if one has begun before."""
        if self._survey is not None:
            return False
        self._survey = Survey()
        return True

    def end(self, step: int) -> tuple[bool, float]:
        """End the census: return True if all growth has stopped, and another thread's seconds."""
        survey, self._survey = self._survey, None
        if survey is None:
            return False, 0.0
        return self._has_stopped(step, survey.end()), survey.thread_s

    def has_stopped(self, step: int) -> bool:
        """Return True if all growth has stopped. Makes the whole census now."""
        return self._has_stopped(step, live_objects.live_tensors())

    def is_full(self, step: int, window_steps: int, *, has_limit: bool) -> bool:
        """Return True if growth has stopped by the end of the run, and nothing of it is freed.

        The variables of a function may be gone by then, so what leaked may be.
        window_steps: of the diagnosis. It grew in both halves, so half of that shows whether it
        still does. has_limit: the source has one.
        """
        if not self:
            return False
        now = census.take(step, live_objects.live_tensors())
        # from any of the notes on: growth may have stopped after the last check
        return any(
            _is_late(counts, step, window_steps, has_limit=has_limit)
            and not any(self._goes_on(count, now) for count in counts)
            and not any(count.has_lost_any(now, window_steps) for count in counts)
            for counts in (self._counts, *self._notes)
        )

    def note(self, step: int) -> float:
        """End the census, and note its counts. Return another thread's seconds."""
        survey, self._survey = self._survey, None
        if survey is None:
            return 0.0
        now = census.take(step, survey.end())
        self._notes.append(tuple(count.at(now) for count in self._counts))
        return survey.thread_s

    def close(self) -> None:
        """Drop a census that has begun."""
        if self._survey is not None:
            self._survey.close()
            self._survey = None

    def _has_stopped(self, step: int, tensors: list[Any]) -> bool:
        now = census.take(step, tensors)
        if not self.goes_on(now):
            return True
        self._counts = tuple(count.at(now) for count in self._counts)
        return False


def _is_late(
    counts: Sequence[GroupCount], step: int, window_steps: int, *, has_limit: bool
) -> bool:
    """Return True if so many steps have passed since these counts that a leak would have grown."""
    steps = step - counts[0].step
    expected = steps * max(count.per_step for count in counts)
    is_limited = has_limit and expected >= _MIN_EXPECTED
    return steps >= (_MIN_LIMIT_SHARE if is_limited else _MIN_END_SHARE) * window_steps
