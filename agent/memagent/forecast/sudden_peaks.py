"""Sudden peaks: the OOMs that need no trend.

1. Optimizer state that the first optimizer step will allocate.
2. An evaluation or a checkpoint that was measured, and doesn't fit next to the present floor. If
   growth has taken its room, that is the cause, and its end the latest time.
3. The largest input, still to come.
4. One of heavy-tailed batch sizes (`tail`): a probability, and at most a notice, as half of such
   runs survive.
"""

from __future__ import annotations

import msgspec

from memagent.forecast.signals import Signals
from memagent.forecast.types import Cause, Level

# Probabilities were fitted to the traces of the forecast benchmark (docs/forecast.md).
OPTIMIZER_STATE_PROBABILITY = 0.97
"""Probability that state which doesn't fit is allocated."""
INPUT_PROBABILITY = 0.88
"""Probability that the largest input comes, or a smaller one that's too large."""
EVAL_PROBABILITY = 0.9
"""Probability that an evaluation comes which was tried and doesn't fit."""
TAIL_PAGE_PROBABILITY = 0.9
"""A page from here on: a batch that's too large, if the largest is known not to fit."""
TAIL_NOTICE_PROBABILITY = 0.7
"""A notice from here on: a batch that's too large."""
MIN_PROBABILITY = 0.01
"""Reported if nothing grows."""
INPUT_TOLERANCE = 1.01
"""Share of the limit above which the largest input doesn't fit: its size is extrapolated."""


class SuddenOom(msgspec.Struct, frozen=True, gc=False):
    """An expected OOM without a trend; `is_next`: in the next step."""

    level: Level
    cause: Cause | None
    probability: float
    is_next: bool = False
    shortage_bytes: float | None = None
    """By which a measured evaluation doesn't fit."""


class SuddenPeaks:
    """Known peaks to come. Sizes are bytes; None if unknown."""

    __slots__ = ("_eval_hint", "eval_bytes", "max_input_size", "state_bytes")

    def __init__(self, state_bytes: int | None, max_input_size: float | None) -> None:
        self.state_bytes = state_bytes
        self.max_input_size = max_input_size
        self.eval_bytes: int | None = None
        self._eval_hint: int | None = None

    def learn(
        self, state_bytes: int | None, max_input_size: float | None, eval_bytes: int | None
    ) -> None:
        """Update what is known; None changes nothing."""
        if state_bytes is not None:
            self.state_bytes = state_bytes
        if max_input_size is not None:
            self.max_input_size = max_input_size
        # A hint that samples have disproved isn't believed again when it's repeated.
        if eval_bytes not in (None, self._eval_hint):
            self.eval_bytes = self._eval_hint = eval_bytes

    def note_phase(
        self, phase: str, signals: Signals, limit_bytes: int, optimizer_steps: int | None
    ) -> None:
        """Forget an evaluation that has passed although it shouldn't fit: it needs less."""
        is_training = phase in ("train", "preflight")
        if not is_training and self._eval_shortage(signals, limit_bytes, optimizer_steps) > 0:
            self.eval_bytes = None

    def certain(
        self, signals: Signals, limit_bytes: int, optimizer_steps: int | None, steps_left: float
    ) -> SuddenOom | None:
        """Return an OOM that is expected whether anything grows or not; None without one.

        steps_left: in which a batch may be too large.
        """
        state = self.state_bytes
        if state and optimizer_steps == 0 and signals.need + state > limit_bytes:
            probability = OPTIMIZER_STATE_PROBABILITY
            return SuddenOom("critical", "optimizer_state", probability, is_next=True)
        shortage = self._eval_shortage(signals, limit_bytes, optimizer_steps)
        if shortage > 0:
            return SuddenOom("warning", "eval", EVAL_PROBABILITY, shortage_bytes=shortage)
        return self._by_largest_input(signals, limit_bytes, steps_left)

    def by_tail(self, signals: Signals, limit_bytes: int, steps_left: float) -> SuddenOom:
        """Return what is expected if nothing grows."""
        probability = self._tail_probability(signals, limit_bytes, steps_left)
        if probability >= TAIL_NOTICE_PROBABILITY:
            return SuddenOom("notice", "tail", probability)
        return SuddenOom("ok", None, max(probability, MIN_PROBABILITY))

    def _by_largest_input(
        self, signals: Signals, limit_bytes: int, steps_left: float
    ) -> SuddenOom | None:
        largest = signals.excess.at_input(self.max_input_size)
        if largest is None:
            return None
        if signals.need_with(largest) <= limit_bytes * INPUT_TOLERANCE:
            return None
        probability = self._tail_probability(signals, limit_bytes, steps_left)
        if probability == 0.0:
            return SuddenOom("warning", "input", INPUT_PROBABILITY)
        # The largest of heavy-tailed sizes may never come, so the probability of one that's too
        # large decides.
        if probability >= TAIL_PAGE_PROBABILITY:
            return SuddenOom("warning", "tail", probability)
        return None

    def _eval_shortage(
        self, signals: Signals, limit_bytes: int, optimizer_steps: int | None
    ) -> float:
        """Return by how much the measured evaluation doesn't fit next to what is allocated."""
        if self.eval_bytes is None:
            return 0.0
        # later, the state is part of the floor
        future = (self.state_bytes or 0) if optimizer_steps == 0 else 0
        return signals.floor + signals.overhead + future + self.eval_bytes - limit_bytes

    def _tail_probability(self, signals: Signals, limit_bytes: int, steps_left: float) -> float:
        """Return the probability that one of the steps to come is too large."""
        return signals.excess_probability(limit_bytes, steps_left, self.max_input_size)
