"""Signals: what each reading adds to the need of a step, and which series grow."""

from __future__ import annotations

from math import inf, nan

import pytest
from msgspec.structs import replace

from memagent.forecast.signals import Signals, valid_reading
from memagent.forecast.types import Trend

MIB = 2**20
LIMIT = 1000 * MIB
NOTHING = {
    "floor": None, "peak": None, "reserved": None, "split": None, "device_used": None, "host": None,
    "input_size": None, "retries": None,
}  # fmt: skip
LINE = Trend(
    slope=2.0, error=0.0, rate=0.0, slow_slope=2.0, slow_rate=0.0, since_step=0.0, span_steps=50.0,
    rise=100.0, jump=2.0, jump_error=0.0, at_step=90.0, level=180.0,
)  # fmt: skip


def fed(*rows: dict, host_limit: int | None = None, limit: int = LIMIT, **common) -> Signals:
    """Return signals after these readings, one per step."""
    signals = Signals(limit, host_limit, limit)
    state = {"is_settled": True, "is_training": True}
    for step, row in enumerate(rows):
        signals.update(step, **{**NOTHING, **state, **common, **row})
    return signals


def climbing(name: str, count: int = 60, size: int = MIB, **common) -> Signals:
    return fed(*({name: step * size} for step in range(count)), **common)


@pytest.mark.parametrize("value", [None, -1, -0.5, inf, nan])
def test_a_reading_that_is_no_size_is_missing(value):
    assert valid_reading(value) is None
    assert (valid_reading(0), valid_reading(2.5)) == (0, 2.5)


def test_the_need_is_the_sum_of_its_parts():
    signals = fed({"floor": 700, "peak": 750, "split": 30, "reserved": 800, "device_used": 900})
    assert (signals.floor, signals.excess.recent) == (700, 50)
    assert signals.overhead == 50 + 100  # unusable, others
    assert signals.need == 900
    assert signals.used == 750


def test_a_missing_reading_leaves_the_last_one():
    signals = fed(
        {"floor": 700, "peak": 750, "split": 30, "reserved": 800, "device_used": 900, "host": 5}, {}, host_limit=9
    )  # fmt: skip
    assert (signals.need, signals.used, signals.host) == (900, 750, 5)
    assert fed().used is None


def test_a_peak_below_the_floor_is_no_excess():
    assert fed({"floor": 700, "peak": 600}).used == 700
    assert fed({"floor": 700}).used == 700
    assert fed({"floor": 700, "peak": 600}).need == 700


@pytest.mark.parametrize(
    ("readings", "others"),
    [
        ({"floor": 5, "reserved": 800, "device_used": 900}, 100),
        ({"floor": 5, "reserved": 800, "device_used": 700}, 0),
        ({"reserved": 500, "floor": 850, "device_used": 900}, 50),  # more allocated than reserved
        ({"device_used": 900, "floor": 100}, 0),  # unknown without the reserved bytes
        ({"floor": 5, "reserved": 800}, 0),
    ],
)
def test_others_use_what_this_process_has_not_reserved(readings, others):
    assert fed(readings).overhead == others


def test_host_memory_counts_only_with_a_limit():
    assert fed({"host": 5}).host == 0
    assert fed({"host": 5}, host_limit=10).host == 5
    assert set(climbing("host").trends) == set()
    assert set(climbing("host", host_limit=LIMIT).trends) == {"host_memory"}


@pytest.mark.parametrize(
    ("name", "cause", "common"),
    [
        ("floor", "leak", {}),
        ("split", "fragmentation", {"floor": 5, "reserved": 99 * MIB}),
        ("device_used", "other_processes", {"floor": 5, "reserved": 5}),
        ("peak", "input", {"floor": 5}),
    ],
)
def test_each_reading_has_its_own_cause(name, cause, common):
    signals = climbing(name, **common) if cause == "leak" else climbing_beside_floor(name, common)
    assert set(signals.trends) == {cause}
    assert signals.trends[cause].slope == pytest.approx(MIB, rel=0.01)


def climbing_beside_floor(name: str, common: dict) -> Signals:
    return fed(*({name: 10 + step * MIB} for step in range(60)), **common)


def test_growth_counts_from_three_thousandths_of_the_limit_and_four_mebibytes():
    # 59 steps, of which the newest fit has seen 57 or more
    assert not climbing("floor", size=MIB // 16, limit=10 * MIB).trends  # 3.7 MiB
    assert climbing("floor", size=MIB // 13, limit=10 * MIB).trends  # 4.5 MiB
    assert not climbing("floor", size=MIB, limit=20_000 * MIB).trends  # 60 MiB of 20 GiB
    assert climbing("floor", size=MIB, limit=18_000 * MIB).trends  # 54 MiB count
    assert not climbing("host", host_limit=20_000 * MIB).trends
    assert climbing("host", host_limit=18_000 * MIB).trends
    assert not climbing("host", size=MIB // 16, host_limit=10 * MIB).trends
    assert climbing("host", size=MIB // 13, host_limit=10 * MIB).trends


def test_unsettled_steps_are_part_of_no_trend():
    assert not climbing("floor", is_settled=False).trends
    assert climbing("floor", is_settled=False).floor == 59 * MIB


def test_trends_are_fitted_every_three_buckets():
    def fitted_at(count: int) -> float | None:
        trend = climbing("floor", count).trends.get("leak")
        return trend and trend.at_step

    # the third and the sixth bucket are too few; the ninth is that of step 8
    assert [fitted_at(count) for count in (8, 9, 10, 11, 12)] == [None, 8, 8, 8, 11]


def test_the_floor_and_the_peaks_have_series_of_minima_and_maxima():
    # 130 steps have buckets of two; every second step peaks 10 MiB above
    rows = [{"floor": 200 * MIB + step * MIB, "peak": 200 * MIB + step * MIB + (10 + step // 4 + step % 2 * 10) * MIB} for step in range(200)]  # fmt: skip
    signals = fed(*rows)
    assert signals._series["leak"].width == signals._series["input"].width == 2
    assert signals._series["leak"].values[-1] == (200 + 198) * MIB
    assert signals._series["input"].values[-1] == (10 + 199 // 4 + 10) * MIB


def test_a_fall_ends_the_trend_of_its_series_at_once():
    rows = [{"floor": n * MIB, "split": n * MIB, "reserved": 200 * MIB} for n in range(60)]
    assert set(fed(*rows).trends) == {"leak", "fragmentation"}
    assert set(fed(*rows, {"floor": 5 * MIB, "split": 60 * MIB, "reserved": 200 * MIB}).trends) == {
        "fragmentation"
    }


def test_a_fall_of_noise_leaves_the_growth_below_it():
    """Teeth of 20 MiB on a line: each fall ends one, none undoes half of the growth."""
    signals, held = Signals(LIMIT, None, LIMIT), []
    for step in range(300):
        floor = (100 + step + 20 * (7 * step % 12) / 12) * MIB
        signals.update(step, **{**NOTHING, "floor": floor}, is_settled=True, is_training=True)
        held.append("leak" in signals.trends)
    assert held.index(True) < 150 and all(held[held.index(True) :])


@pytest.mark.parametrize(("value", "is_held"), [(31, True), (29, False)])
def test_a_fall_undoes_growth_by_half_of_it(value, is_held):
    signals = climbing("floor")
    # fitted at step 59: it has risen by 59 MiB
    assert signals._is_undone("leak", value * MIB) != is_held


def test_the_expected_need_follows_the_trends_above_the_readings():
    signals = fed({"floor": 150, "peak": 160, "split": 20, "reserved": 180, "device_used": 210})
    need = signals.need
    assert need == 150 + 10 + 20 + 30
    assert signals.expected_need(100) == need
    signals.trends = {"leak": LINE}
    assert signals.expected_need(100) == need + (200 - 150)
    assert signals.expected_need(90) == need + (180 - 150)
    signals.trends = {"leak": replace(LINE, level=50.0)}  # 70 at step 100, below the reading
    assert signals.expected_need(100) == need
    signals.trends = {"leak": LINE, "fragmentation": LINE, "other_processes": LINE, "input": LINE}
    assert signals.expected_need(100) == need + 50 + 180 + 170


def test_the_expected_host_memory_is_not_below_the_reading():
    signals = fed({"host": 150}, host_limit=1000)
    assert signals.expected_host(100) == 150
    signals.trends = {"host_memory": LINE}
    assert signals.expected_host(100) == 200
    signals.trends = {"host_memory": replace(LINE, level=100.0)}
    assert signals.expected_host(100) == 150


def test_a_restart_forgets_one_series_and_its_trend():
    rows = [{"floor": n * MIB, "split": n * MIB, "reserved": 200 * MIB} for n in range(60)]
    signals = fed(*rows)
    signals.restart("leak")
    assert set(signals.trends) == {"fragmentation"}
    assert (signals._series["leak"].values, len(signals._series["fragmentation"].values)) == (
        [],
        60,
    )
    signals.restart("other_processes")  # one without a trend


def test_an_excess_in_evaluations_has_no_part_in_the_tail():
    sizes = [100, 150, 90, 400] * 20
    training = fed(*({"floor": 100, "peak": 100 + size + step} for step, size in enumerate(sizes)))
    evaluating = fed(
        *({"floor": 100, "peak": 100 + size + step} for step, size in enumerate(sizes)),
        is_training=False,
    )
    assert evaluating.excess_probability(600, 1000, None) == 0.0
    assert training.excess.recent == evaluating.excess.recent


def test_the_room_for_the_tail_is_what_the_rest_leaves():
    sizes = [100 + (step * 7919) % 97 for step in range(20)] + [900]
    readings = {"split": 30, "reserved": 800, "device_used": 900}
    one = fed(*({"floor": 100, "peak": 100 + size, **readings} for size in sizes))
    other = fed(*({"floor": 200, "peak": 200 + size} for size in sizes))
    assert 0 < one.excess_probability(1400, 100, None) < 0.9
    assert one.excess_probability(1400, 100, None) == other.excess_probability(1400, 100, None)
    assert one.excess_probability(1400, 100, None) < one.excess_probability(1300, 100, None)


def test_a_known_largest_input_that_fits_excludes_a_tail():
    sizes = [*range(2, 40), 729]
    signals = fed(*({"floor": 100, "peak": 100 + size, "input_size": size} for size in sizes))
    assert signals.excess_probability(1000, 100, 900) == 0.0
    assert signals.excess_probability(999, 100, 900) > 0.0
    assert signals.excess_probability(1000, 100, None) > 0.0


def test_the_need_is_as_uncertain_as_what_is_unusable():
    # of a limit of 1000 MiB, 20 MiB are unusable at the median and 160 at most
    rows = {"floor": 0, "peak": 700 * MIB, "split": 0}
    assert fed({**rows, "reserved": 900 * MIB}).need_bounds == (20 * MIB, 140 * MIB)
    assert fed({**rows, "reserved": 705 * MIB}).need_bounds == (5 * MIB, 0)
    assert fed({"floor": 700 * MIB}).need_bounds == (0, 0)
