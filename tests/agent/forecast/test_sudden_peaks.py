"""OOMs that need no trend, named after the module's docstring."""

from __future__ import annotations

from memagent.forecast.signals import Signals
from memagent.forecast.sudden_peaks import MIN_PROBABILITY, SuddenOom, SuddenPeaks

GIB = 2**30
LIMIT = 16 * GIB


def signals(floor: int, *peaks: int) -> Signals:
    """Return the signals of steps on one floor, whose peaks are given."""
    result = Signals(LIMIT, None, LIMIT)
    for step, peak in enumerate(peaks or (floor,) * 4):
        result.update(
            step, is_settled=True, floor=floor, peak=peak, reserved=None, split=None, retries=None, device_used=None, host=None,
            input_size=None, is_training=True,
        )  # fmt: skip
    return result


def test_1_state_that_will_not_fit_is_expected_in_the_next_step_until_it_exists():
    peaks = SuddenPeaks(4 * GIB, None)
    found = peaks.certain(signals(13 * GIB), LIMIT, 0, 100)
    assert found == SuddenOom("critical", "optimizer_state", 0.97, is_next=True)
    assert peaks.certain(signals(13 * GIB), LIMIT, 1, 100) is None
    assert peaks.certain(signals(11 * GIB), LIMIT, 0, 100) is None


def test_2_an_evaluation_counts_the_state_that_is_still_to_come():
    peaks = SuddenPeaks(2 * GIB, None)
    peaks.learn(None, None, 3 * GIB)
    assert peaks.certain(signals(12 * GIB), LIMIT, 1, 100) is None
    assert peaks.certain(signals(12 * GIB), LIMIT, 0, 100).cause == "eval"
    assert peaks.certain(signals(14 * GIB), LIMIT, 1, 100).cause == "eval"


def test_2_an_evaluation_that_passed_is_forgotten_until_another_one_was_measured():
    peaks, full = SuddenPeaks(None, None), signals(14 * GIB)
    peaks.learn(None, None, 3 * GIB)
    for phase in ("train", "preflight"):
        peaks.note_phase(phase, full, LIMIT, 1)
        assert peaks.certain(full, LIMIT, 1, 100).cause == "eval"
    peaks.note_phase("eval", full, LIMIT, 1)
    peaks.learn(None, None, 3 * GIB)
    assert peaks.certain(full, LIMIT, 1, 100) is None
    peaks.learn(None, None, 4 * GIB)
    assert peaks.certain(full, LIMIT, 1, 100).cause == "eval"


def test_4_even_sizes_leave_the_smallest_probability():
    found = SuddenPeaks(None, None).by_tail(signals(8 * GIB), LIMIT, 100)
    assert found == SuddenOom("ok", None, MIN_PROBABILITY)
