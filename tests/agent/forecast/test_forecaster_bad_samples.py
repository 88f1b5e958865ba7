"""The forecaster copes with any samples: bad rows, missing columns, resumes, odd strides."""

from __future__ import annotations

import math
import pickle
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memagent.forecast import Forecast, Forecaster, feed_columns, later
from memagent.forecast.replay_columns import READINGS
from memagent.forecast.types import LEVELS

GIB = 2**30
LIMIT = 40 * GIB
PAGES = ("warning", "critical")

numbers = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63),
    st.floats(allow_nan=True, allow_infinity=True),
    st.just(0),
)
rows = st.fixed_dictionaries(
    {name: numbers for name in READINGS if name not in ("phase", "optimizer_steps")}
    | {
        "step": st.one_of(st.none(), st.integers(-5, 200), st.just(2**62)),
        "phase": st.sampled_from(["train", "eval", "checkpoint", "", None]),
        "optimizer_steps": st.one_of(st.none(), st.integers(0, 5)),
    }
)
options = st.fixed_dictionaries(
    {
        "host_limit_bytes": st.one_of(st.none(), st.integers(1, 2**50)),
        "total_steps": st.one_of(st.none(), st.integers(0, 10_000)),
        "optimizer_state_bytes": st.one_of(st.none(), st.integers(0, 2**50)),
        "max_input_size": st.one_of(st.none(), st.floats(0, 1e12)),
        "epoch_steps": st.one_of(st.none(), st.integers(0, 300)),
        "predicted_peak_bytes": st.one_of(st.none(), st.integers(0, 2**50)),
        "gc_probe": st.sampled_from([None, later, lambda: 0]),
    }
)


def sound(forecast: Forecast) -> None:
    assert forecast.level in LEVELS
    assert 0 <= forecast.oom_probability <= 1
    for value in (
        forecast.eta_step,
        forecast.eta_low,
        forecast.eta_high,
        forecast.eta_s,
        forecast.growth_bytes_per_step,
    ):
        assert value is None or math.isfinite(value)
    if forecast.eta_step is not None:
        assert forecast.step <= forecast.eta_low <= forecast.eta_step <= forecast.eta_high
        assert forecast.eta_s is None or forecast.eta_s >= 0


@settings(max_examples=100, deadline=None)
@given(st.lists(rows, max_size=60), options, st.integers(1, 2**50))
def test_no_row_causes_an_error_or_an_invalid_forecast(
    samples: list[dict[str, Any]], given_options: dict[str, Any], limit: int
):
    columns = {name: [row[name] for row in samples] for name in [*READINGS, "step"]}
    for forecast in feed_columns(Forecaster(limit, **given_options), columns):
        sound(forecast)


@settings(max_examples=40, deadline=None)
@given(
    st.floats(-0.01, 0.02),
    st.floats(0, 0.05),
    st.integers(0, 60),
    st.integers(0, 2**32),
    options,
    st.integers(2**20, 2**40),
)
def test_no_growth_causes_an_error_or_an_invalid_forecast(
    slope, noise, every, seed, given_options, limit
):
    source = random.Random(seed)
    forecaster = Forecaster(limit, **given_options)
    for step in range(250):
        floor = limit * (
            0.3 + slope * step + source.gauss(0, noise) + (0.01 * (step // every) if every else 0.0)
        )
        sound(
            forecaster.update(
                step, time_s=0.1 * step, allocated_bytes=int(floor), peak_allocated_bytes=int(1.2 * floor),
                reserved_bytes=int(1.3 * floor), device_used_bytes=int(1.4 * floor), host_used_bytes=int(floor), input_size=step,
                inactive_split_bytes=source.randrange(1 + int(abs(floor) / 10)),
            )
        )  # fmt: skip


def leak(step: float) -> dict[str, Any]:
    floor = int((10 + 0.02 * step) * GIB)
    return {"allocated_bytes": floor, "peak_allocated_bytes": floor + 4 * GIB}


def page(steps, readings=leak, **given_options) -> Forecast | None:
    forecaster = Forecaster(LIMIT, **given_options)
    forecasts = (forecaster.update(step, time_s=float(step), **readings(step)) for step in steps)
    return next((forecast for forecast in forecasts if forecast.level in PAGES), None)


def with_gaps(step: int) -> dict[str, Any]:
    return leak(step) if step % 3 else {}


@pytest.mark.parametrize(
    ("name", "steps", "readings"),
    [
        ("every tenth step", range(0, 1300, 10), leak),
        ("irregular steps", sorted(random.Random(1).sample(range(1300), 400)), leak),
        ("every third reading missing", range(1300), with_gaps),
        (
            "NVML alone",
            range(1300),
            lambda step: {"device_used_bytes": leak(step)["peak_allocated_bytes"]},
        ),
        (
            "floor alone",
            range(1300),
            lambda step: {"allocated_bytes": leak(step)["peak_allocated_bytes"]},
        ),
        (
            "eval rows between",
            range(1300),
            lambda step: leak(step) | {"phase": "eval" if step % 50 == 49 else "train"},
        ),
        ("a resumed run's steps", range(70_000, 71_300), lambda step: leak(step - 70_000)),
    ],
)
def test_a_leak_is_forecast_from_irregular_samples(name, steps, readings):
    forecast = page(steps, readings)
    first = next(iter(steps))
    assert forecast is not None and forecast.step - first < 1200
    assert abs(forecast.eta_step - first - 1300) < 150


def test_memory_outside_torch_is_forecast_from_nvml():
    """nvdiffrast 23: 2 MB an iteration that the caching allocator has never heard of."""

    def readings(step: int) -> dict[str, Any]:
        used = 20 * GIB + step * 2 * 2**20
        return {
            "allocated_bytes": 15 * GIB,
            "peak_allocated_bytes": 17 * GIB,
            "reserved_bytes": 18 * GIB,
            "device_used_bytes": used,
        }

    forecast = page(range(20 * 512), readings)
    assert forecast.cause == "other_processes"
    assert forecast.eta_step == pytest.approx(20 * 512, rel=0.2)


def test_a_flat_run_at_98_9_percent_survives_its_retries():
    """torchtitan 2389: six allocation retries, and nothing happens."""

    def readings(step: int) -> dict[str, Any]:
        return {
            "allocated_bytes": int(0.7 * LIMIT), "peak_allocated_bytes": int(0.95 * LIMIT), "reserved_bytes": int(0.97 * LIMIT),
            "alloc_retries": min(6, step // 100), "device_used_bytes": int(0.989 * LIMIT),
        }  # fmt: skip

    assert page(range(2000), readings) is None


def test_accumulated_deferred_frees_are_not_a_leak():
    """pytorch 71616: blocks freed but waiting for another stream are active and not allocated; the reserved memory shows them."""

    def readings(step: int) -> dict[str, Any]:
        waiting = (step % 40) * GIB // 8
        return {
            "allocated_bytes": 15 * GIB,
            "peak_allocated_bytes": 18 * GIB,
            "reserved_bytes": 20 * GIB + waiting,
        }

    assert page(range(2000), readings) is None


def test_a_temporary_process_on_the_gpu_is_not_reported():
    def readings(step: int) -> dict[str, Any]:
        theirs = 8 * GIB if 400 <= step < 900 else 0
        return {
            "allocated_bytes": 15 * GIB, "peak_allocated_bytes": 20 * GIB, "reserved_bytes": 21 * GIB,
            "device_used_bytes": 22 * GIB + theirs,
        }  # fmt: skip

    assert page(range(2000), readings) is None


def test_periodic_evaluations_and_a_finished_curriculum_are_not_reported():
    def readings(step: int) -> dict[str, Any]:
        evaluates = step % 100 == 99
        size = min(1.0, 0.2 + step / 800)
        peak = 15 + (18 if evaluates else 12 * size)
        return {
            "allocated_bytes": 15 * GIB, "peak_allocated_bytes": int(peak * GIB), "input_size": None if evaluates else size,
            "phase": "eval" if evaluates else "train",
        }  # fmt: skip

    assert page(range(3000), readings) is None


def test_growth_below_the_estimate_needs_more_evidence():
    without, expected = page(range(1300)), page(range(1300), predicted_peak_bytes=39 * GIB)
    assert without.step < expected.step < 1250


def test_a_leak_beyond_the_estimate_is_reported_earlier():
    without, outgrown = page(range(1300)), page(range(1300), predicted_peak_bytes=20 * GIB)
    assert outgrown.step < without.step


def test_an_estimate_that_was_always_too_low_does_not_change_the_forecast():
    without, wrong = page(range(1300)), page(range(1300), predicted_peak_bytes=2 * GIB)
    assert wrong.step == without.step


@pytest.mark.parametrize("limit", [1, 1000, 2**20])
def test_a_tiny_limit_is_accepted(limit):
    forecaster = Forecaster(limit)
    for step in range(100):
        sound(forecaster.update(step, allocated_bytes=limit // 2, peak_allocated_bytes=limit))


def test_the_forecasters_memory_does_not_grow_with_the_run():
    forecaster = Forecaster(LIMIT, host_limit_bytes=LIMIT, gc_probe=later)
    sizes = []
    for step in range(15_000):
        forecaster.update(
            10 * step, allocated_bytes=10 * GIB + 1000 * step, peak_allocated_bytes=12 * GIB + (step % 97) * 2**20,
            reserved_bytes=20 * GIB, inactive_split_bytes=step, device_used_bytes=22 * GIB, host_used_bytes=GIB + step,
            input_size=step % 97,
        )  # fmt: skip
        if step in (1_500, 14_999):
            sizes.append(len(pickle.dumps(forecaster)))
    assert sizes[1] < 1.6 * sizes[0]
