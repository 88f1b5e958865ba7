"""Steps of a window that are traced, so that tracemalloc slows the script down by a limited time.

To note a block takes a microsecond, and half of one for each frame: a step that makes a hundred
thousand takes 20 times as long. The excess over earlier steps is part of a diagnosis' cost.

1. `StepTimes` has the processor time of steps without a trace. Their median is the measure.
2. If steps take so much longer that too few of them fit into the limit, fewer frames are noted.
3. Then only one of several steps is traced. Which one is left to chance: what grows at each tenth
   step must not always be missed, or hit.
4. If even that takes too long, nothing is traced.
"""

from __future__ import annotations

import random
import statistics
from collections import deque
from dataclasses import dataclass, field

FRAMES, FEW_FRAMES = 6, 2
"""Frames traced per block. Two are the script's line in most libraries, for a third of the time."""
MAX_SLOW_DOWN_S = 1.0
"""Processor time by which a trace slows the script down, unless all diagnoses may take more."""
MIN_TRACED_STEPS, MIN_FEW_STEPS = 9, 5
"""Steps worth a trace with all frames, and with few: the first and the last one, and some of both
halves."""
MIN_BARE_STEPS = 4
"""Steps without a trace whose time is known before one."""
_LAST_STEPS = 20


class StepTimes:
    """Processor time of the newest steps without a trace."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_LAST_STEPS)
        self._began: tuple[int, float] | None = None
        self._calls = 0

    def begin(self, step: int, clock_s: float) -> None:
        """Note when the step after `step` begins, by the clock of the training thread."""
        self._began = step, clock_s

    def end(self, step: int, clock_s: float, *, is_traced: bool) -> float | None:
        """Return how long a step took, None if its beginning wasn't noted."""
        self._calls += 1
        if self._began is None or self._began[0] != step - 1:
            return None
        took_s = max(0.0, clock_s - self._began[1])
        if not is_traced:
            self._seconds.append(took_s)
        return took_s

    @property
    def median_s(self) -> float | None:
        """Return the median, None if no step is known."""
        return statistics.median(self._seconds) if self._seconds else None

    @property
    def is_known(self) -> bool:
        """Return True for enough steps, or if only some of a script's steps are reported."""
        return len(self._seconds) >= MIN_BARE_STEPS or self._calls > MIN_BARE_STEPS + 1


@dataclass
class TraceSchedule:
    """Decides after each step of a window whether the next one is traced.

    bare_s: what a step takes without a trace, None if that's unknown: then all are traced. steps:
    of the window.
    """

    bare_s: float | None = None
    steps: int = 0
    max_slow_down_s: float = MAX_SLOW_DOWN_S
    frames: int = FRAMES
    is_too_slow: bool = False
    slow_down_s: float = 0.0
    """Excess of all steps so far."""
    _excesses: list[float] = field(default_factory=list)
    """Excess of each traced step, with this number of frames."""
    _untraced_excesses: list[float] = field(default_factory=list)
    """The same of the steps between them, in which what is freed is still looked up."""
    _to_skip: int = 0
    _chance: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311  # nosec B311

    def end_step(self, took_s: float | None, *, was_traced: bool) -> None:
        """Note how long a step took, None if that's unknown."""
        self.steps -= 1
        if took_s is None or self.bare_s is None:
            return
        excess_s = max(0.0, took_s - self.bare_s)
        alike = self._excesses if was_traced else self._untraced_excesses
        alike.append(excess_s)
        # an evaluation takes long by itself
        self.slow_down_s += min(excess_s, 2 * _median(alike))
        if was_traced and len(alike) == 1:
            self._choose_frames(excess_s)

    def begin_half(self) -> None:
        """Trace the next step, the first one after a reading."""
        self._to_skip = 0

    def traces_next(self) -> bool:
        """Return True if the next step is to be traced. The last one of the window always is."""
        if self._to_skip:
            self._to_skip -= 1
            return False
        excess_s, untraced_s = _median(self._excesses), _median(self._untraced_excesses)
        steps = self.steps - 1
        left_s = self.max_slow_down_s - self.slow_down_s - excess_s
        if steps > 0 and excess_s * steps > left_s:
            more_s = max(1e-6, excess_s - untraced_s)
            traced = max(1, int((left_s - untraced_s * steps) / more_s))
            self._to_skip = self._chance.randint(0, 2 * (steps // traced - 1) + 1)
        return True

    def _choose_frames(self, excess_s: float) -> None:
        """Note fewer frames if the first step took too long, then nothing."""
        least = MIN_TRACED_STEPS if self.frames == FRAMES else MIN_FEW_STEPS
        if least * excess_s <= self.max_slow_down_s:
            return
        self.is_too_slow = self.frames == FEW_FRAMES
        self.frames = FEW_FRAMES
        self._excesses = []


def _median(seconds: list[float]) -> float:
    return statistics.median(seconds) if seconds else 0.0
