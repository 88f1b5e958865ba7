"""The forecaster on series with a known end. Sizes are in bytes, GiB in the names."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.forecast import Forecaster

MIB = 2**20

GIB = 2**30
LIMIT = 40 * GIB
PAGES = ("warning", "critical")


def series(
    length: int, floor, *, excess: float = 4.0, noise: float = 0.02, seed: int = 1
) -> list[tuple[int, int, int]]:
    """(step, allocated, peak) for steps whose floor in GiB is floor(step); ends where the peak would pass the limit."""
    generator = random.Random(seed)
    rows = []
    for step in range(1, length + 1):
        allocated = (floor(step) + generator.gauss(0, noise)) * GIB
        peak = allocated + excess * GIB * generator.uniform(0.98, 1.0)
        if peak >= LIMIT:
            break
        rows.append((step, int(allocated), int(peak)))
    return rows


def first_page(rows, *, step_s: float = 1.0, **options):
    """The first forecast that pages, or None."""
    forecaster = Forecaster(LIMIT, **options)
    for step, allocated, peak in rows:
        forecast = forecaster.update(
            step, time_s=step * step_s, allocated_bytes=allocated, peak_allocated_bytes=peak
        )
        if forecast.level in PAGES:
            return forecast
    return None


@pytest.mark.parametrize(
    ("name", "floor"),
    [
        ("linear", lambda t: 10 + 0.02 * t),
        ("accelerating", lambda t: 10 + 26 * (t / 1300) ** 1.5),
        ("late onset", lambda t: 10 + max(0, t - 600) * 0.04),
        ("in jumps", lambda t: 10 + (t // 40) * 0.8),
        ("after a warm-up", lambda t: 10 + 5 * (1 - math.exp(-t / 20)) + 0.016 * t),
        ("per epoch", lambda t: 10 + (t // 100) * 2.0),
    ],
)
def test_a_leak_is_forecast_well_before_the_end(name, floor):
    rows = series(5000, floor)
    death = rows[-1][0] + 1
    forecast = first_page(rows)
    assert forecast is not None and forecast.cause == "leak"
    lead = death - forecast.step
    assert lead >= 0.08 * death, f"only {lead} of {death} steps before"
    assert abs(forecast.eta_step - death) <= 0.5 * lead
    assert forecast.eta_low <= forecast.eta_step <= forecast.eta_high
    assert forecast.growth_bytes_per_step > 0 and forecast.growing_since_step < forecast.step
    assert forecast.oom_probability > 0.5


def test_a_linear_leak_is_forecast_with_a_third_of_the_run_left():
    rows = series(5000, lambda t: 10 + 0.02 * t)
    assert (rows[-1][0] - first_page(rows).step) / rows[-1][0] > 0.3


@pytest.mark.parametrize(
    ("name", "floor"),
    [
        ("flat", lambda t: 20),
        ("flat at 98 percent", lambda t: 35.1),
        ("warm-up that plateaus", lambda t: 10 + 24 * (1 - math.exp(-t / 100))),
        ("slow plateau", lambda t: 10 + 22 * (1 - math.exp(-t / 800))),
        ("saw tooth of garbage collection", lambda t: 10 + 12 * (t % 50) / 50),
        ("one jump", lambda t: 10 if t < 500 else 25),
        ("too slow to matter", lambda t: 10 + 0.0005 * t),
        ("falling", lambda t: 30 - 0.005 * t),
    ],
)
def test_harmless_growth_is_not_reported(name, floor):
    assert first_page(series(2000, floor)) is None


def test_a_leak_that_reaches_the_limit_after_the_planned_end_is_not_reported():
    rows = series(1000, lambda t: 10 + 0.02 * t)[:1000]
    assert first_page(rows, total_steps=1000) is None
    assert first_page(rows) is not None


def test_the_level_depends_on_the_remaining_seconds():
    rows = series(5000, lambda t: 10 + 0.02 * t)
    assert first_page(rows, step_s=10.0).level == "warning"
    assert first_page(rows, step_s=0.01).level == "critical"
    assert first_page(rows, step_s=10.0).eta_s == pytest.approx(
        10 * (1300 - first_page(rows).step), rel=0.2
    )


def test_optimizer_state_that_will_not_fit_is_forecast_before_the_first_step():
    forecaster = Forecaster(LIMIT, optimizer_state_bytes=20 * GIB)
    forecast = forecaster.update(
        0, allocated_bytes=18 * GIB, peak_allocated_bytes=25 * GIB, optimizer_steps=0
    )
    assert (forecast.level, forecast.cause) == ("critical", "optimizer_state")
    small = Forecaster(LIMIT, optimizer_state_bytes=2 * GIB)
    assert (
        small.update(
            0, allocated_bytes=18 * GIB, peak_allocated_bytes=25 * GIB, optimizer_steps=0
        ).level
        == "ok"
    )


def test_the_forecast_includes_the_largest_input():
    def page(largest: int):
        forecaster = Forecaster(LIMIT, max_input_size=largest)
        generator = random.Random(3)
        for step in range(1, 200):
            size = generator.randrange(200, 1000)
            forecast = forecaster.update(
                step,
                allocated_bytes=10 * GIB,
                peak_allocated_bytes=10 * GIB + size * GIB // 50,
                input_size=size,
            )
            if forecast.level in PAGES:
                return forecast
        return None

    assert page(2000).cause == "input"
    assert page(1200) is None


def test_fragmentation_is_distinguished_from_a_leak():
    forecaster = Forecaster(LIMIT)
    for step in range(1, 1000):
        split = int(step * 0.02 * GIB)
        forecast = forecaster.update(
            step,
            allocated_bytes=15 * GIB,
            peak_allocated_bytes=20 * GIB,
            reserved_bytes=21 * GIB + split,
            inactive_split_bytes=split,
        )
        if forecast.level in PAGES:
            break
    assert forecast.cause == "fragmentation" and forecast.step < 1000


def test_other_processes_are_distinguished_from_a_leak():
    forecaster = Forecaster(LIMIT)
    for step in range(1, 1000):
        used = 20 * GIB + int(step * 0.02 * GIB)
        forecast = forecaster.update(
            step,
            allocated_bytes=15 * GIB,
            peak_allocated_bytes=18 * GIB,
            reserved_bytes=19 * GIB,
            device_used_bytes=used,
        )
        if forecast.level in PAGES:
            break
    assert forecast.cause == "other_processes"


def test_a_leak_of_another_process_that_begins_late_is_paged():
    forecaster = Forecaster(LIMIT)
    for step in range(1, 9000):
        others = 5 * GIB + max(0, step - 5000) * 3 * MIB
        forecast = forecaster.update(
            step,
            allocated_bytes=20 * GIB,
            peak_allocated_bytes=22 * GIB,
            reserved_bytes=23 * GIB,
            device_used_bytes=23 * GIB + others,
        )
        if forecast.level in PAGES:
            break
    assert forecast.cause == "other_processes" and forecast.step < 8500  # it ends at 9,096


def test_other_processes_use_what_a_limit_of_the_process_leaves_first():
    limit, device, own = 6 * GIB, 80 * GIB, 4 * GIB

    def level(first, more, device_bytes):
        forecaster = Forecaster(limit, device_bytes=device_bytes)
        for step in range(1, 200):
            forecast = forecaster.update(
                step,
                allocated_bytes=own,
                peak_allocated_bytes=own,
                reserved_bytes=own,
                device_used_bytes=own + first + step * more // 200,
            )
        return forecast.level

    assert level(0, 70 * GIB, device) == level(0, 300 * GIB, math.inf) == "ok"
    assert level(73 * GIB, 3 * GIB, device) in PAGES and level(0, 3 * GIB, None) in PAGES


def test_host_memory_has_its_own_limit():
    forecaster = Forecaster(LIMIT, host_limit_bytes=64 * GIB)
    for step in range(1, 2000):
        forecast = forecaster.update(
            step, allocated_bytes=10 * GIB, host_used_bytes=int((10 + 0.03 * step) * GIB)
        )
        if forecast.level in PAGES:
            break
    assert (forecast.cause, forecast.limit_bytes) == ("host_memory", 64 * GIB)


def test_garbage_that_can_be_collected_is_no_leak():
    rows = series(5000, lambda t: 10 + 0.02 * t)
    calls = []

    def collect():
        calls.append(True)
        return 10 * GIB

    assert first_page(rows[:900], gc_probe=collect) is None and calls
    assert first_page(rows, gc_probe=lambda: None) is not None


def test_growth_within_an_epoch_is_not_reported_before_its_end():
    def floor(t):
        return 10 + 20 * (t % 1000) / 1000

    assert first_page(series(3000, floor), epoch_steps=1000) is None


def test_a_lower_step_restarts_the_forecast():
    forecaster = Forecaster(LIMIT)
    for step, allocated, peak in series(900, lambda t: 10 + 0.02 * t):
        forecaster.update(step, allocated_bytes=allocated, peak_allocated_bytes=peak)
    forecast = forecaster.update(1, allocated_bytes=10 * GIB, peak_allocated_bytes=14 * GIB)
    assert (forecast.level, forecast.step, forecast.growth_bytes_per_step) == ("ok", 1, None)


def test_missing_readings_are_ignored():
    forecaster = Forecaster(LIMIT)
    for step in range(100):
        assert forecaster.update(step).level == "ok"


def test_the_same_readings_give_the_same_forecast():
    rows = series(2000, lambda t: 10 + 0.02 * t)
    assert first_page(rows) == first_page(rows)


readings = st.one_of(st.none(), st.integers(0, 2**50))


@given(
    st.lists(st.tuples(st.integers(0, 60), readings, readings, readings, readings), max_size=80),
    st.integers(1, 2**50),
)
def test_no_reading_causes_an_error_or_an_invalid_forecast(rows, limit):
    forecaster = Forecaster(limit, host_limit_bytes=limit, total_steps=50)
    for step, allocated, peak, used, host in rows:
        forecast = forecaster.update(
            step,
            time_s=float(step),
            allocated_bytes=allocated,
            peak_allocated_bytes=peak,
            device_used_bytes=used,
            host_used_bytes=host,
        )
        assert 0 <= forecast.oom_probability <= 1
        assert forecast.eta_step is None or (
            math.isfinite(forecast.eta_step) and forecast.eta_step >= step
        )


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_must_be_more_than_zero(limit):
    with pytest.raises(ValueError, match="must be positive"):
        Forecaster(limit)


def heavy_tailed(
    *,
    largest: float | None = None,
    spread: float = 0.35,
    count: int = 600,
    seed: int = 5,
    **options,
):
    """Return forecasts of lognormal batches under a limit of four times their median."""
    forecaster = Forecaster(LIMIT, max_input_size=largest, **options)
    source = random.Random(seed)
    for step in range(1, count):
        size = min(source.lognormvariate(0, spread), 3.5)
        yield forecaster.update(
            step,
            allocated_bytes=20 * GIB,
            peak_allocated_bytes=int((20 + 5 * size) * GIB),
            input_size=size,
        )


def test_heavy_tailed_batches_are_a_notice_with_a_probability():
    forecasts = list(heavy_tailed(spread=0.5, total_steps=20_000))
    assert {forecast.level for forecast in forecasts} <= {"ok", "notice"}
    assert any(
        forecast.cause == "tail" and forecast.oom_probability > 0.5 for forecast in forecasts
    )


def test_a_large_batch_that_may_never_occur_does_not_page():
    assert not {
        forecast.level for forecast in heavy_tailed(spread=0.35, largest=4.5, total_steps=700)
    } & set(PAGES)


def test_a_leak_of_each_evaluation_ends_at_one():
    """Jumps of 0.5 GiB each 50 steps; the 40th, at step 2,000, doesn't fit."""
    forecaster = Forecaster(LIMIT)
    floor = LIMIT - 24 * GIB
    etas = []
    for step in range(2000):
        held = floor + step // 50 * GIB // 2
        forecast = forecaster.update(
            step, allocated_bytes=held, peak_allocated_bytes=held + 4 * GIB + GIB // 4
        )
        if forecast.level in ("warning", "critical"):
            etas.append(forecast.eta_step)
    # at step 1,024, when buckets hold 16 steps: half of one
    assert abs(etas[0] - 2000) <= 8


def test_the_forecast_of_a_leak_changes_rarely():
    forecaster = Forecaster(LIMIT)
    changes = []
    for step, allocated, peak in series(5000, lambda t: 10 + 0.02 * t, noise=0.2):
        forecast = forecaster.update(
            step, time_s=step, allocated_bytes=allocated, peak_allocated_bytes=peak
        )
        if not changes or changes[-1] != (forecast.level, forecast.eta_step):
            changes.append((forecast.level, forecast.eta_step))
    levels = [level for level, _ in changes]
    assert levels == sorted(levels, key=("ok", "notice", "warning", "critical").index)
    assert len(changes) < 40


def test_a_restarted_accumulator_is_not_growth_without_a_known_epoch():
    rows = series(3000, lambda t: 10 + 12 * (t % 300) / 300)
    assert first_page(rows) is None


def test_growth_in_jumps_is_reported_only_if_it_continues():
    source = random.Random(4)
    early = sorted(source.betavariate(1, 6) * 2000 for _ in range(25))
    assert first_page(series(2000, lambda t: 10 + 0.65 * sum(at <= t for at in early))) is None
    steady = sorted(source.uniform(0, 2000) for _ in range(60))
    assert first_page(series(2000, lambda t: 10 + 0.8 * sum(at <= t for at in steady))) is not None


@pytest.mark.parametrize("end", [100, 250, 600, 1000])
def test_a_leak_that_stops_is_withdrawn_within_a_tenth_of_its_history(end):
    forecaster = Forecaster(int(100 + 1.3 * end) * MIB)
    levels = []
    for step in range(end + max(30, end // 9)):
        floor = (100 + min(step, end)) * MIB
        forecast = forecaster.update(step, allocated_bytes=floor, peak_allocated_bytes=floor + MIB)
        levels.append(forecast.level)
    assert "warning" in levels[:end]
    withdrawn = next(step for step in range(end, len(levels)) if levels[step] == "ok")
    assert withdrawn - end <= max(26, end // 10)
