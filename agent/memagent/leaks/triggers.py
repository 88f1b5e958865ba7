"""When memory is worth a diagnosis, and by which method.

Slow growth in a device's readings, however far the limit is:

1. The minimum of each block of steps counts, so what comes and goes within a block doesn't. Long
   blocks show what grows at every fiftieth step, such as results of evaluations; the diagnosis of
   their growth takes a longer window.
2. Growth is suspected after several rising blocks in a row, each by a minimum amount, and by
   similar amounts: random rises vary in size.
3. At the beginning of a run three short blocks will do, since many runs are over before long ones
   are. What is allocated rises as evenly as a leak does, where resident memory stays the same.

Which method follows a result:

4. A diagnosis without suspects is followed by the next method. If it saw tensors grow, those that
   only count tensors come first.
5. Suspects that explain next to nothing of measured growth are followed by a trace of Python's
   allocations, once: beside a list of small tensors, one of arrays may grow much faster.
6. A diagnosis that was cut short says nothing.

`CheckSchedule` says when suspects are checked: whether what they keep still grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from memagent.leaks.finder_import import FinderImport
    from memagent.leaks.suspect import Diagnosis

EARLY_STEPS = 128
EARLY_EVERY = 4
"""Steps at the beginning of a run, and those among them with a reading on the training thread."""
BLOCK_STEPS = 16
MIDDLE_BLOCK_STEPS = 32
LONG_BLOCK_STEPS = 64
RISING_BLOCKS = 5
FEW_RISING_BLOCKS = 3
"""The same for blocks that contain a step of rare growth each, or whose readings are exact."""
MAX_RISE_RATIO = 4.0
"""Largest rise over the smallest up to which rises count as similar."""
MIDDLE_WINDOW_STEPS = 80
LONG_WINDOW_STEPS = 160
"""Windows for growth at every twentieth and fiftieth step: they contain three such steps."""
RARE_WINDOW_STEPS = 400
"""Window for growth at irregular steps: at the ends of episodes, or of files."""
MIN_CUDA_BYTES_PER_STEP = 32
MIN_OTHER_BYTES_PER_STEP = 16 * 2**10
"""A host's readings rise while allocators and caches warm up; CUDA's allocator counts exactly."""
MIN_HEAP_BYTES_PER_STEP = 4 * 2**10
"""The same for what a process has allocated. The agent's own rows are up to 2 KiB a step."""

FIRST_CHECK_STEPS, CHECK_RATIO = 80, 1.25
"""Steps after which suspects are checked, and by how much each later check is further from the one
before: what fills up for half of a run is withdrawn before its end."""
NOTE_STEPS = 20
"""Steps after which tensors are counted again: the end of a run compares with that."""

MIN_EXPLAINED = 0.1
"""Least share of measured growth that suspects explain: that of a heap is a multiple of a leak's
while a run warms up."""


class Method(msgspec.Struct, frozen=True):
    """A way to diagnose. window: steps, None for the usual ones."""

    traces_host: bool = False
    window: int | None = None


HOST_METHODS = (
    Method(),
    Method(traces_host=True),
    Method(window=LONG_WINDOW_STEPS),
    Method(traces_host=True, window=MIDDLE_WINDOW_STEPS),
    Method(window=RARE_WINDOW_STEPS),
)
DEVICE_METHODS = (Method(), Method(window=LONG_WINDOW_STEPS))
"""One follows the other while no suspect was found."""


def censuses_first(methods: tuple[Method, ...], tried: int) -> tuple[Method, ...]:
    """Return the methods with those that only count tensors first among the ones not yet tried.

    The longest window stays the last.
    """
    return *methods[:tried], *sorted(
        methods[tried:], key=lambda item: (item.window == RARE_WINDOW_STEPS, item.traces_host)
    )


def is_growth(device_kind: str, bytes_per_step: int | None) -> bool:
    """Return True if growth that a diagnosis measured is worth the next one at once."""
    is_exact = device_kind == "cuda"
    least = MIN_CUDA_BYTES_PER_STEP if is_exact else MIN_OTHER_BYTES_PER_STEP
    return (bytes_per_step or 0) >= least


class MethodSequence:
    """device_kind: of the training device."""

    def __init__(self, device_kind: str) -> None:
        self._device_kind = device_kind
        self._methods: tuple[Method, ...] = (
            HOST_METHODS if device_kind == "host" else DEVICE_METHODS
        )
        self.tried = 0
        """Methods whose result wasn't enough."""

    @property
    def current(self) -> Method:
        """Return the method of the next diagnosis."""
        return self._methods[min(self.tried, len(self._methods) - 1)]

    @property
    def is_over(self) -> bool:
        """Return True if all have been tried."""
        return self.tried >= len(self._methods)

    def go_on(self, diagnosis: Diagnosis) -> bool:
        """Note a result. Return True if the next method may find what it didn't."""
        if diagnosis.is_cut_short:
            return False
        if diagnosis.suspects:
            return self._go_on_to_trace(diagnosis)
        self.tried += 1
        if diagnosis.are_tensors:
            self._methods = censuses_first(self._methods, self.tried)
        return not self.is_over

    def _go_on_to_trace(self, diagnosis: Diagnosis) -> bool:
        tried, rest = self._methods[: self.tried + 1], self._methods[self.tried + 1 :]
        traces = [item for item in rest if item.traces_host]
        if not traces or any(item.traces_host for item in tried) or self._is_explained(diagnosis):
            return False
        self.tried += 1
        self._methods = *tried, *traces, *(item for item in rest if not item.traces_host)
        return True

    def _is_explained(self, diagnosis: Diagnosis) -> bool:
        rates = [item.bytes_per_step for item in diagnosis.suspects]
        known = sum(rate or 0 for rate in rates)
        growth = diagnosis.growth_bytes_per_step
        grows = is_growth(self._device_kind, growth)
        return not grows or None in rates or known >= MIN_EXPLAINED * (growth or 0)


class SlowGrowthDetector:
    """Detects slow growth in one device's readings, in constant memory.

    rising_blocks: so many in a row are suspected. min_bytes_per_step: what counts as a rise.
    """

    def __init__(
        self,
        device_kind: str,
        block_steps: int = BLOCK_STEPS,
        rising_blocks: int = RISING_BLOCKS,
        min_bytes_per_step: int = MIN_OTHER_BYTES_PER_STEP,
    ) -> None:
        is_exact = device_kind == "cuda"
        self._block_steps = block_steps
        self._rising_blocks = rising_blocks
        self._min_rise = block_steps * (MIN_CUDA_BYTES_PER_STEP if is_exact else min_bytes_per_step)
        self.reset()

    def reset(self) -> None:
        """Forget what was observed."""
        self._previous_floor: int | None = None
        self._floor: int | None = None
        self._steps = 0
        self._rises: list[int] = []

    def observe(self, readings: Iterable[int | None]) -> bool:
        """Return True when growth is suspected, then not again until it has lasted as long.

        readings: bytes in use at the ends of consecutive steps, None if unknown.
        """
        known = [reading for reading in readings if reading is not None]
        is_suspected = False
        while known:
            room = self._block_steps - self._steps
            is_suspected |= self._add(known[:room])
            known = known[room:]
        return is_suspected

    def _add(self, readings: list[int]) -> bool:
        """Add the readings of steps of one block."""
        floor = min(readings)
        self._floor = floor if self._floor is None else min(self._floor, floor)
        self._steps += len(readings)
        if self._steps < self._block_steps:
            return False
        rise = self._floor - self._previous_floor if self._previous_floor is not None else 0
        self._rises = (
            [*self._rises[1 - self._rising_blocks :], rise] if rise >= self._min_rise else []
        )
        self._previous_floor = self._floor
        self._floor = None
        self._steps = 0
        is_short = len(self._rises) < self._rising_blocks
        if is_short or max(self._rises) > MAX_RISE_RATIO * min(self._rises):
            return False
        self._rises = []
        return True


def early_growth_detectors(device_kind: str) -> list[tuple[SlowGrowthDetector, int | None]]:
    """Return the same as `slow_growth_detectors`, for a reading at each `EARLY_EVERY` steps."""
    return [
        (_detector_of_few(device_kind, 2, EARLY_EVERY * MIN_HEAP_BYTES_PER_STEP), None),
        (
            _detector_of_few(device_kind, 8, EARLY_EVERY * MIN_HEAP_BYTES_PER_STEP),
            MIDDLE_WINDOW_STEPS,
        ),
    ]


class EarlyGrowth:
    """Growth from the beginning of a run, on the training thread.

    The diagnosis waits for some steps, in which the finder is imported in slices.
    """

    def __init__(self, device_kind: str) -> None:
        self._detectors = early_growth_detectors(device_kind)
        self._method: Method | None = None
        self._import: FinderImport | None = None

    def is_over(self, step: int) -> bool:
        """Return True if the beginning is over, and no diagnosis of it waits."""
        return step > EARLY_STEPS and self._method is None

    def after_step(self, step: int, used_bytes: Callable[[], int | None]) -> Method | None:
        """Return the method of a diagnosis that is due, if there is one."""
        if self._method is None and step % EARLY_EVERY == 0:
            readings = [used_bytes()]
            windows = [window for item, window in self._detectors if item.observe(readings)]
            self._method = Method(window=windows[-1]) if windows else None
        if self._method is None or not self._import_finder():
            return None
        method, self._method = self._method, None
        return method

    def _import_finder(self) -> bool:
        from memagent.leaks.finder_import import FinderImport

        self._import = self._import or FinderImport()
        return self._import.go_on()


def slow_growth_detectors(device_kind: str) -> list[tuple[SlowGrowthDetector, int | None]]:
    """Return the detectors with the windows of the diagnoses that they request."""
    return [
        (SlowGrowthDetector(device_kind), None),
        (_detector_of_few(device_kind, MIDDLE_BLOCK_STEPS), MIDDLE_WINDOW_STEPS),
        (_detector_of_few(device_kind, LONG_BLOCK_STEPS), LONG_WINDOW_STEPS),
    ]


def _detector_of_few(
    device_kind: str, block_steps: int, min_bytes_per_step: int = MIN_OTHER_BYTES_PER_STEP
) -> SlowGrowthDetector:
    return SlowGrowthDetector(device_kind, block_steps, FEW_RISING_BLOCKS, min_bytes_per_step)


class CheckSchedule:
    """Steps of the next check of the newest suspects, and of the next count between two checks."""

    def __init__(self) -> None:
        self.is_active = False
        """There are suspects to check."""
        self._check_step = 0
        self._count_step = 0
        self._distance: float = FIRST_CHECK_STEPS

    def begin(self, step: int, *, has_suspects: bool) -> None:
        """Begin after a diagnosis."""
        self.is_active = has_suspects
        self._distance = FIRST_CHECK_STEPS
        self._check_step = step + FIRST_CHECK_STEPS
        self._count_step = step + NOTE_STEPS

    def is_check_due(self, step: int) -> bool:
        return self.is_active and step >= self._check_step

    def is_count_due(self, step: int) -> bool:
        """Return True if tensors are to be counted, and no check does."""
        return self.is_active and self._count_step <= step < self._check_step

    def note_count(self, step: int) -> None:
        self._count_step = step + NOTE_STEPS

    def note_check(self, step: int, *, is_soon: bool) -> None:
        """Note that a check is over. is_soon: the next one is to confirm it."""
        self._distance *= CHECK_RATIO
        # soon: the run may be over before a later one
        self._check_step = step + (FIRST_CHECK_STEPS if is_soon else int(self._distance))

    def end(self) -> None:
        """Check no more: there are no suspects left."""
        self.is_active = False
