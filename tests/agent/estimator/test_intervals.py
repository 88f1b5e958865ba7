"""Intervals: ratios of the passing bytes, widths that add up as squares, the context."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memagent.estimator.devices import CONTEXT_BYTES, CONTEXT_RANGE_BYTES
from memagent.estimator.estimate import ErrorModel, context_widths, intervals_of
from memagent.estimator.formula.presets import preset
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import estimate_training
from memagent.units import GIB, MIB

SPREAD = ErrorModel(tensors=(0.03, 0.06), fragmentation=(0.04, 0.08))


def test_it_widens_with_the_passing_bytes_only():
    few = intervals_of(SPREAD, passing_bytes=100, allocated=10_000)
    many = intervals_of(SPREAD, passing_bytes=5000, allocated=10_000)
    assert few == {"allocated": (9997, 10_006)} and many == {"allocated": (9850, 10_300)}


def test_it_adds_the_widths_of_independent_errors_as_squares():
    found = intervals_of(
        SPREAD, passing_bytes=1000, allocated=2000, reserved=2200, device=2700, context=(120, 240)
    )
    assert found["reserved"] == (2150, 2300)  # 30 and 40 below, 60 and 80 above
    assert found["device"] == (2570, 2960)  # 50 and 120 below, 100 and 240 above


def test_it_never_goes_below_the_constant_bytes():
    found = intervals_of(
        ErrorModel(tensors=(3.0, 1.0)), passing_bytes=500, allocated=1000, reserved=1000
    )
    assert found["allocated"][0] == 500 == found["reserved"][0]


def test_a_measured_context_has_no_interval():
    assert context_widths(480 * MIB, None) is None
    assert context_widths(480 * MIB, CONTEXT_RANGE_BYTES) == (180 * MIB, 860 * MIB)
    spec = TrainingSpec(preset("gpt2"), batch=8, sequence=1024, gpu="a100")
    guessed = estimate_training(spec)
    measured = estimate_training(spec, context_bytes=CONTEXT_BYTES)
    assert measured.peak_device_bytes == guessed.peak_device_bytes
    assert measured.intervals["allocated"] == guessed.intervals["allocated"]
    assert width(measured.intervals["device"]) < width(guessed.intervals["device"])


def test_each_level_lies_in_its_interval_and_starts_no_lower_than_the_one_before():
    found = estimate_training(
        TrainingSpec(preset("llama-2-7b"), batch=4, sequence=2048, gpu="h100")
    )
    levels = (found.peak_allocated_bytes, found.peak_reserved_bytes, found.peak_device_bytes)
    assert list(found.intervals) == ["allocated", "reserved", "device"]
    for peak, (low, high) in zip(levels, found.intervals.values(), strict=True):
        assert low <= peak <= high
    lows = [low for low, _ in found.intervals.values()]
    assert lows[0] <= min(lows) and found.peak_device_bytes > 50 * GIB


def width(interval: tuple[int, int]) -> int:
    return interval[1] - interval[0]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_state_makes_an_interval_no_wider(optimizer: str):
    spec = TrainingSpec(
        preset("gpt2"), batch=8, sequence=1024, optimizer=optimizer, implementation="fused"
    )
    assert width(estimate_training(spec).intervals["allocated"]) == pytest.approx(
        width(estimate_training(replace(spec, optimizer="sgd")).intervals["allocated"]), rel=0.02
    )
