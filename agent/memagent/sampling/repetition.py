"""Steps that repeat each other: most are read once, at their end, instead of four times, or not.

On a host a phase's peak is the higher of the readings at its two ends. With cold caches such a
reading takes 10 to 20 us, and in most trainings it says the same in every step.

1. Steps repeat after EQUAL_STEPS full readings in a row with the same phases and input
   size, whose peaks are the same relative to the step's end. A tolerance of 0.1 % of the memory in
   use applies, at least a mebibyte.
2. Then every FULL_EVERY-th step is read in full, and the first after MAX_FULL_AGE_S. The others
   have its phases, moved with the memory in use at their own end. A new peak of the process is
   known by the kernel's high-water mark. Steps that take MAX_STEP_S of the thread's processor time
   are always read in full: there it costs next to nothing. On a busy host, each step would be long
   by the clock.
3. Repetition ends with a step whose end moves by more, that has another input size, or that raises
   the kernel's high-water mark. Its phases are unknown (None).
4. While the ends of the steps that are read differ by FLAT_BYTES at most, one in READ_EVERY_S is
   read. The others have its values and input size, and hooks skip their training forwards.

The collector's thread decides this up to half a second after the steps.
"""

from __future__ import annotations

from collections.abc import Mapping

EQUAL_STEPS = 32
FULL_EVERY = 512
MAX_FULL_AGE_S = 5.0
READ_EVERY_S = 0.1
MAX_STEP_S = 0.05
FLAT_BYTES = 2**18
"""A quarter of the least tolerance, and of the growth in a block that counts as slow growth."""
_MIN_TOLERANCE_BYTES = 2**20
_TOLERANCE_RATIO = 0.001


class RepetitionDetector:
    """Of one device. The training thread reads `is_repeating`, `is_flat` and `input_size`."""

    __slots__ = (
        "_offsets",
        "_reference",
        "_steps",
        "_used",
        "input_size",
        "is_flat",
        "is_repeating",
    )

    def __init__(self) -> None:
        self.is_repeating = False
        self.is_flat = False
        self.input_size: int | None = None
        self._used = 0
        self._reference: dict[str, int] = {}
        """Peaks by phase above the end of the step, of the first step of the series."""
        self._offsets: dict[str, int] = {}
        """The same of the newest step that was read in full."""
        self._steps = 0

    def observe(self, input_size: int | None, used: int, peaks: Mapping[str, int]) -> None:
        """Take a step that was read in full: memory in use at its end, and peaks by phase."""
        self._offsets = {phase: peak - used for phase, peak in peaks.items()}
        if input_size == self.input_size and self._is_near(used) and self._repeats(used):
            self._steps += 1
            self.is_repeating = self._steps >= EQUAL_STEPS
            self._move_to(used)
        else:
            self._reference = self._offsets
            self.input_size = input_size
            self._end(used)

    def peaks_at(self, input_size: int | None, used: int, last_peak: int) -> dict[str, int]:
        """Return the peaks by phase of a step that was read at its end only.

        last_peak: the highest that is known of the step. Empty if the step may differ.
        """
        if self.is_repeating and input_size == self.input_size and self._is_near(used):
            peaks = {phase: max(0, used + offset) for phase, offset in self._offsets.items()}
            if last_peak <= max(peaks.values()) + _tolerance(used):
                self._move_to(used)
                return peaks
        self._end(used)
        return {}

    def _move_to(self, used: int) -> None:
        self.is_flat = self.is_repeating and abs(used - self._used) <= FLAT_BYTES
        self._used = used

    def _end(self, used: int) -> None:
        self._used = used
        self._steps = 0
        self.is_repeating = False
        self.is_flat = False

    def _is_near(self, used: int) -> bool:
        return abs(used - self._used) <= _tolerance(used)

    def _repeats(self, used: int) -> bool:
        if self._offsets == self._reference:
            return True
        tolerance = _tolerance(used)
        return self._offsets.keys() == self._reference.keys() and all(
            abs(offset - self._reference[phase]) <= tolerance
            for phase, offset in self._offsets.items()
        )


def _tolerance(used: int) -> float:
    return max(_MIN_TOLERANCE_BYTES, _TOLERANCE_RATIO * used)
