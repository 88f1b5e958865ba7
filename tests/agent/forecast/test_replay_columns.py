"""Feeding sample columns to a forecaster."""

from __future__ import annotations

from random import Random

import pytest

from memagent.forecast import Forecaster, Hints, feed_columns, feed_repetitions, select_columns
from memagent.forecast.replay_columns import FORECAST_COLUMNS

GIB = 2**30


class Heard(Forecaster):
    """Notes what it is fed."""

    def __init__(self, **options) -> None:
        super().__init__(40 * GIB, **options)
        self.readings: list[dict] = []

    def update(self, step, **readings):
        self.readings.append({"step": step, **readings})
        return super().update(step, **readings)


def phases(**columns) -> list[str]:
    recorder = Heard()
    list(
        feed_columns(
            recorder, {"step": list(range(1, 1 + len(next(iter(columns.values()))))), **columns}
        )
    )
    return [reading["phase"] for reading in recorder.readings]


def test_it_returns_a_forecast_per_row_and_reads_host_memory_by_its_wire_name():
    columns = {"step": [1, 2, 3], "allocated_bytes": [GIB, GIB, None], "host_rss_bytes": [GIB] * 3}
    results = list(feed_columns(Forecaster(40 * GIB, host_limit_bytes=64 * GIB), columns))
    assert [forecast.step for forecast in results] == [1, 2, 3]
    assert {forecast.used_bytes for forecast in results} == {GIB}


def test_the_row_of_step_zero_is_before_the_first_optimizer_step():
    (forecast,) = feed_columns(
        Forecaster(40 * GIB, optimizer_state_bytes=20 * GIB),
        {"step": [0], "allocated_bytes": [30 * GIB]},
    )
    assert forecast.cause == "optimizer_state"


def test_a_row_belongs_to_the_phase_of_its_peak():
    assert phases(
        phase_forward_peak_bytes=[5, 5, 5, None],
        phase_backward_peak_bytes=[6, 6, None, None],
        phase_eval_peak_bytes=[None, 7, 6, 2],
        phase_checkpoint_peak_bytes=[None, 6, 9, None],
    ) == ["train", "eval", "checkpoint", "eval"]


def test_a_row_with_a_small_evaluation_is_a_training_row():
    assert phases(phase_backward_peak_bytes=[6, 6], phase_eval_peak_bytes=[6, 5]) == [
        "train",
        "train",
    ]


def test_a_step_without_phases_is_classified_by_its_whole_peak():
    assert phases(peak_allocated_bytes=[9, 9, None], phase_eval_peak_bytes=[8, 9, 9]) == [
        "train",
        "eval",
        "eval",
    ]


def test_a_user_phase_is_part_of_its_step():
    assert phases(phase_rollout_peak_bytes=[9], phase_forward_peak_bytes=[5]) == ["train"]
    assert phases(phase_rollout_peak_bytes=[9, 9], phase_validation_peak_bytes=[8, 10]) == [
        "train",
        "validation",
    ]


def test_recordings_without_user_phases_are_all_training():
    assert phases(phase_forward_peak_bytes=[5]) == phases(allocated_bytes=[5]) == ["train"]


@pytest.mark.parametrize("every", [7, 25])
def test_periodic_evaluations_above_the_training_peak_are_not_growth(every):
    evals = [step % every == 0 for step in range(600)]
    columns = {
        "step": list(range(600)),
        "time_s": [float(step) for step in range(600)],
        "allocated_bytes": [20 * GIB] * 600,
        "input_size": [None if item else 1000 for item in evals],
        "phase_backward_peak_bytes": [26 * GIB] * 600,
        "phase_eval_peak_bytes": [39 * GIB if item else None for item in evals],
        "peak_allocated_bytes": [39 * GIB if item else 26 * GIB for item in evals],
    }
    assert {forecast.level for forecast in feed_columns(Forecaster(40 * GIB), columns)} <= {
        "ok",
        "notice",
    }


def test_a_column_of_optimizer_steps_overrides_the_row_numbers():
    recorder = Heard()
    list(
        feed_columns(
            recorder,
            {"step": [0, 1, 2], "optimizer_steps": [0, 0, 1], "allocated_bytes": [GIB] * 3},
        )
    )
    assert [reading["optimizer_steps"] for reading in recorder.readings] == [0, 0, 1]


def test_each_column_is_the_argument_of_its_meaning():
    columns = {
        "step": [7], "time_s": [1.0], "allocated_bytes": [2], "peak_allocated_bytes": [3],
        "reserved_bytes": [4], "inactive_split_bytes": [5], "alloc_retries_total": [6],
        "device_used_bytes": [8], "host_rss_bytes": [9], "input_size": [10], "power_w": [11],
        "limit_bytes": [12], "host_limit_bytes": [13],
    }  # fmt: skip
    recorder = Heard()
    list(feed_columns(recorder, columns))
    assert recorder.readings == [
        {
            "step": 7, "phase": "train", "optimizer_steps": 7, "count": 1, "time_s": 1.0, "allocated_bytes": 2,
            "peak_allocated_bytes": 3, "reserved_bytes": 4, "inactive_split_bytes": 5,
            "alloc_retries": 6, "device_used_bytes": 8, "host_used_bytes": 9, "input_size": 10,
            "limit_bytes": 12, "host_limit_bytes": 13,
        }
    ]  # fmt: skip
    assert all(name in FORECAST_COLUMNS for name in columns if name != "power_w")


@pytest.mark.parametrize(
    ("name", "is_read"),
    [
        ("phase_rollout_peak_bytes", True), ("phase", True), ("optimizer_steps", True),
        ("phase_count", False), ("cache_peak_bytes", False), ("power_w", False), (5, False),
    ],
)  # fmt: skip
def test_other_columns_need_not_be_decoded(name, is_read):
    assert (name in FORECAST_COLUMNS) == is_read


def test_a_column_of_phases_overrides_the_peaks():
    assert phases(phase=["eval", "train"], phase_eval_peak_bytes=[1, 9], phase_forward_peak_bytes=[5, 5]) == [
        "eval", "train",
    ]  # fmt: skip


def test_a_missing_step_is_zero():
    recorder = Heard()
    list(feed_columns(recorder, {"step": [None, 3], "allocated_bytes": [1, 1]}))
    assert [reading["step"] for reading in recorder.readings] == [0, 3]


def test_a_step_without_any_peak_is_training():
    assert phases(peak_allocated_bytes=[None], phase_eval_peak_bytes=[None]) == ["train"]
    assert phases(phase_eval_peak_bytes=[None, 1], phase_forward_peak_bytes=[None, None]) == [
        "train", "eval",
    ]  # fmt: skip


def test_a_phase_column_needs_both_of_its_ends():
    columns = {"phase_eval_peak_bytes": [6], "cache_peak_bytes": [9], "phase_count": [9]}
    assert phases(phase_forward_peak_bytes=[5], **columns) == ["eval"]


def test_a_secondary_host_reads_its_allocated_bytes_as_host_memory():
    columns = {"step": [1], "time_s": [2.0], "phase": ["train"], "allocated_bytes": [3], "host_rss_bytes": [9],
               "input_size": [4]}  # fmt: skip
    assert select_columns(columns, is_secondary_host=True) == {
        "step": [1], "time_s": [2.0], "phase": ["train"], "host_rss_bytes": [3],
    }  # fmt: skip
    assert select_columns(columns, is_secondary_host=False) is columns
    without = {"step": [1], "host_rss_bytes": [9]}
    assert select_columns(without, is_secondary_host=True) is without


@pytest.mark.parametrize("is_secondary_host", [False, True])
def test_the_limit_is_that_of_the_newest_row(is_secondary_host):
    forecaster = Hints().forecaster("host", 400 * GIB, is_secondary_host=is_secondary_host)
    steps = range(1, 401)
    columns = {
        "step": list(steps),
        "allocated_bytes": [GIB + step * GIB // 50 for step in steps],
        "limit_bytes": [None if step % 2 else (400 if step < 300 else 10) * GIB for step in steps],
    }
    selected = select_columns(columns, is_secondary_host=is_secondary_host)
    forecasts = {forecast.step: forecast for forecast in feed_columns(forecaster, selected)}
    assert forecasts[299].level == "ok" and forecasts[400].level == "warning"
    assert {forecasts[step].limit_bytes for step in (299, 400)} == {400 * GIB, 10 * GIB}


def parts_of(allocated: list[int], size: int = 20) -> list[dict]:
    """Columns of consecutive steps, as the collector publishes them."""
    return [
        {
            "step": list(range(first, min(first + size, len(allocated)))),
            "time_s": [step / 100 for step in range(first, min(first + size, len(allocated)))],
            "allocated_bytes": allocated[first : first + size],
            "peak_allocated_bytes": [used + GIB for used in allocated[first : first + size]],
        }
        for first in range(0, len(allocated), size)
    ]


@pytest.mark.parametrize("noise", [0, 2**20])
def test_rows_that_are_alike_are_fed_at_once_while_all_is_calm(noise):
    recorder = Heard()
    parts = parts_of([GIB + step * 7919 % 13 * noise for step in range(2000)])
    assert [[*feed_repetitions(recorder, part)][-1].step for part in parts][-1] == 1999
    assert len(recorder.readings) < 0.4 * 2000
    assert sum(reading["count"] for reading in recorder.readings) == 2000


@pytest.mark.parametrize("every", [1, 7, 50])
def test_a_leak_after_equal_rows_is_forecast_as_row_by_row(every):
    allocated = [GIB + max(0, step - 1500) // every * every * 2**23 for step in range(4000)]
    one_by_one, joined = Forecaster(16 * GIB), Forecaster(16 * GIB)
    for part in parts_of(allocated):
        expected = [*feed_columns(one_by_one, part)][-1]
        forecast = [*feed_repetitions(joined, part)][-1]
        assert (forecast.step, forecast.level, forecast.cause) == (
            expected.step, expected.level, expected.cause,
        )  # fmt: skip
        assert forecast.eta_step == pytest.approx(expected.eta_step)
    assert forecast.level == "critical"


def test_one_peak_long_ago_does_not_hold_up_rows_that_are_alike():
    """A single step above its floor begins a series that gets no other value."""
    recorder = Heard()
    parts = parts_of([GIB] * 2000)
    for part in parts:
        is_first = part is parts[0]
        peak = [GIB + is_first * (step == 12) * 2**12 for step in part["step"]]
        list(feed_repetitions(recorder, {**part, "peak_allocated_bytes": peak}))
    assert len(recorder.readings) < 0.4 * 2000
    assert sum(reading["count"] for reading in recorder.readings) == 2000


def test_rows_that_differ_by_what_matters_are_fed_one_by_one():
    recorder = Heard()
    for part in parts_of([GIB + step % 2 * 2**25 for step in range(2000)]):
        list(feed_repetitions(recorder, part))
    assert {reading["count"] for reading in recorder.readings} == {1}


@pytest.mark.parametrize("growth", [2**18, 2**20, 2**23])
def test_a_leak_among_rows_that_are_alike_pages_as_early_as_row_by_row(growth):
    """Rows of a chunk differ by noise, and by the leak as well."""
    random = Random(growth)
    allocated = [
        GIB + random.randrange(2**21) + max(0, step - 3000) * growth for step in range(12_000)
    ]
    pages = {}
    for feed in (feed_columns, feed_repetitions):
        forecaster = Forecaster(3 * GIB, total_steps=60_000)
        forecasts = (one for part in parts_of(allocated) for one in feed(forecaster, part))
        pages[feed] = next(one for one in forecasts if one.level in ("warning", "critical"))
    one_by_one, joined = pages.values()
    assert joined.cause == one_by_one.cause == "leak"
    assert joined.step == pytest.approx(one_by_one.step, rel=0.01)
    assert joined.eta_step == pytest.approx(one_by_one.eta_step, rel=0.05)


def test_a_step_that_goes_back_among_equal_rows_starts_again():
    forecaster = Heard()
    columns = {"step": [*range(40), *range(40)], "allocated_bytes": [GIB] * 80}
    assert [*feed_repetitions(forecaster, columns)][-1].step == 39
    assert sum(reading["count"] for reading in forecaster.readings) == 80
