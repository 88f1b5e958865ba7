"""Intervals at each level, and the fitted table that they come from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memagent.estimator.devices import CONTEXT_BYTES, CONTEXT_RANGE_BYTES
from memagent.estimator.formula.presets import preset
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import estimate_training
from memagent.estimator.intervals import (
    MIN_WIDTH_BYTES,
    GroupRatios,
    RatioTable,
    context_widths,
    intervals_of,
    ratio_table,
)
from memagent.units import GIB, MIB

RATIOS = GroupRatios(allocated=(0.03, 0.06), reserved=(0.05, 0.1), device=(0.05, 0.1))


def test_it_widens_with_the_passing_bytes_only():
    few = intervals_of(RATIOS, passing_bytes=100, allocated=10_000)
    many = intervals_of(RATIOS, passing_bytes=5000, allocated=10_000)
    assert few == {"allocated": (9997, 10_006)} and many == {"allocated": (9850, 10_300)}


def test_it_adds_the_context_as_an_independent_error():
    result = intervals_of(
        RATIOS,
        passing_bytes=1000 * MIB,
        allocated=2000 * MIB,
        reserved=2200 * MIB,
        device=2700 * MIB,
        context=(120 * MIB, 240 * MIB),
    )
    assert result["reserved"] == (2150 * MIB, 2300 * MIB)
    assert result["device"] == (2570 * MIB, 2960 * MIB)  # 50 and 120 below, 100 and 240 above


def test_on_a_gpu_it_leaves_room_for_whole_blocks():
    exact = GroupRatios(allocated=(0.0, 0.0))
    result = intervals_of(exact, passing_bytes=GIB, allocated=2 * GIB, reserved=2 * GIB)
    assert result["allocated"] == (2 * GIB - MIN_WIDTH_BYTES, 2 * GIB + MIN_WIDTH_BYTES)
    assert result["reserved"] == result["allocated"]


def test_it_never_goes_below_the_constant_bytes():
    ratios = GroupRatios(allocated=(3.0, 1.0), reserved=(3.0, 1.0))
    sizes = {"passing_bytes": GIB // 2, "allocated": GIB, "reserved": GIB}
    result = intervals_of(ratios, **sizes)
    assert result["allocated"][0] == GIB // 2 == result["reserved"][0]


def test_a_group_without_ratios_takes_those_of_its_method():
    table = RatioTable("", {"trace": RATIOS, "trace, others": GroupRatios((0.0, 0.0))})
    assert table.ratios_for("trace, convolutions") is RATIOS
    assert table.ratios_for("trace, others") is not RATIOS


def test_every_method_has_ratios_and_the_corpus_is_named():
    table = ratio_table()
    assert {"trace", "formula"} <= set(table.groups) and len(table.corpus) == 64
    for ratios in table.groups.values():
        assert ratios.trainings and ratios.programs
        assert all(each >= 0 for each in (*ratios.allocated, *ratios.reserved, *ratios.device))


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
    result = estimate_training(
        TrainingSpec(preset("llama-2-7b"), batch=4, sequence=2048, gpu="h100")
    )
    levels = (result.peak_allocated_bytes, result.peak_reserved_bytes, result.peak_device_bytes)
    assert list(result.intervals) == ["allocated", "reserved", "device"]
    for peak, (low, high) in zip(levels, result.intervals.values(), strict=True):
        assert low <= peak <= high
    lows = [low for low, _ in result.intervals.values()]
    assert lows[0] <= min(lows) and result.peak_device_bytes > 50 * GIB


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
