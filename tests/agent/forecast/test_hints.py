"""Hints in addition to the samples, in the agent and on the server."""

from __future__ import annotations

import pytest

from memagent.forecast import Forecaster, Hints, feed_columns, later, select_columns

GIB = 2**30
LIMIT = 40 * GIB


def rows(count: int, floor: int = 30 * GIB, first: int = 0, **columns) -> dict[str, list]:
    steps = list(range(first, first + count))
    return {
        "step": steps,
        "allocated_bytes": [floor] * count,
        **{name: [value] * count for name, value in columns.items()},
    }


def last(forecaster: Forecaster, columns):
    *_, forecast = feed_columns(forecaster, columns)
    return forecast


def test_a_later_event_is_merged_with_the_earlier_ones():
    hints = Hints(total_steps=9).merged_with(
        {"epoch_steps": 5, "optimizer_state_bytes": {"a": 1, "b": 2}}
    )
    hints = hints.merged_with(
        {"optimizer_state_bytes": {"a": 0}, "eval_bytes": {"a": 7}, "verdict": "fits"}
    )
    assert (hints.total_steps, hints.epoch_steps) == (9, 5)
    assert hints.optimizer_state_bytes == {"a": 0, "b": 2} and hints.eval_bytes == {"a": 7}


def test_hints_survive_the_conversion_to_an_event():
    hints = Hints(epoch_steps=5, max_input_size=4096, optimizer_state_bytes={"gpu": 3})
    assert hints.to_data() == {
        "epoch_steps": 5,
        "max_input_size": 4096,
        "optimizer_state_bytes": {"gpu": 3},
    }
    assert Hints().merged_with(hints.to_data()) == hints


@pytest.mark.parametrize(
    "value", ["many", -1, 0, None, True, float("nan"), float("inf"), 2**70, [1], {"a": "b"}]
)
def test_malformed_hints_are_ignored(value):
    data = {
        "epoch_steps": value,
        "eval_bytes": value,
        "optimizer_state_bytes": {"gpu": "b"},
        "unknown": 1,
    }
    assert Hints().merged_with(data) == Hints()


def test_missing_optimizer_state_is_expected_before_the_first_step():
    hints = Hints(optimizer_state_bytes={"gpu": 20 * GIB})
    (forecast,) = feed_columns(hints.forecaster("gpu", LIMIT), rows(1))
    assert (forecast.level, forecast.cause) == ("critical", "optimizer_state")
    (forecast,) = feed_columns(hints.forecaster("another", LIMIT), rows(1))
    assert forecast.level == "ok"
    assert (
        last(hints.forecaster("gpu", LIMIT), rows(3, first=1)).level == "ok"
    )  # it has stepped: the state is there


def test_an_evaluation_that_will_not_fit_is_forecast_at_once():
    forecaster = Hints(eval_bytes={"gpu": 8 * GIB}).forecaster("gpu", LIMIT)
    assert last(forecaster, rows(10)).level == "ok"
    forecast = last(forecaster, rows(1, floor=33 * GIB, first=10))
    assert (forecast.level, forecast.cause, forecast.eta_step) == ("warning", "eval", None)


def test_an_evaluation_is_added_to_missing_optimizer_state():
    hints = Hints(eval_bytes={"gpu": 6 * GIB}, optimizer_state_bytes={"gpu": 5 * GIB})
    assert last(hints.forecaster("gpu", LIMIT), rows(1)).cause == "eval"


def test_a_finished_evaluation_replaces_its_estimate():
    hints = Hints(eval_bytes={"gpu": 20 * GIB})
    forecaster = hints.forecaster("gpu", LIMIT)
    assert last(forecaster, rows(5)).cause == "eval"
    survived = rows(1, first=5, phase_eval_peak_bytes=39 * GIB, phase_forward_peak_bytes=31 * GIB)
    last(forecaster, survived | {"peak_allocated_bytes": [39 * GIB]})
    hints.merged_with({"epoch_steps": 100}).apply_to(forecaster, "gpu")
    assert last(forecaster, rows(20, first=6)).level == "ok"


def test_a_running_forecaster_accepts_hints():
    forecaster = Hints().forecaster("gpu", LIMIT)
    last(forecaster, rows(5))
    Hints(eval_bytes={"gpu": 20 * GIB}).apply_to(forecaster, "gpu")
    assert last(forecaster, rows(1, first=5)).cause == "eval"
    Hints(eval_bytes={"gpu": 1}).apply_to(forecaster, "gpu")
    assert last(forecaster, rows(20, first=6)).level == "ok"


def test_a_secondary_host_is_forecast_from_its_memory_only():
    columns = {
        "step": list(range(400)),
        "time_s": [float(step) for step in range(400)],
        "allocated_bytes": [10 * GIB + step * GIB // 15 for step in range(400)],
        "peak_allocated_bytes": [12 * GIB + step * GIB // 15 for step in range(400)],
        "host_rss_bytes": [GIB] * 400,
    }
    hints = Hints(eval_bytes={"host": GIB})
    secondary = last(
        hints.forecaster("host", LIMIT, is_secondary_host=True),
        select_columns(columns, is_secondary_host=True),
    )
    trained_on = last(
        hints.forecaster("host", LIMIT), select_columns(columns, is_secondary_host=False)
    )
    assert (secondary.cause, trained_on.cause) == ("host_memory", "leak")
    assert (
        secondary.level in ("warning", "critical")
        and secondary.used_bytes == columns["allocated_bytes"][-1]
    )
    assert secondary.limit_bytes == LIMIT


def test_what_grows_belongs_to_a_device():
    hints = Hints().merged_with({"grows": {"a": "list", "b": "heap", 5: "cache", "c": ["list"]}})
    assert hints.grows == {"a": "list", "5": "cache"}
    assert hints.to_data() == {"grows": {"a": "list", "5": "cache"}}
    assert hints.merged_with({"grows": "list"}) == hints
    assert hints.merged_with({"grows": {"a": "buffer"}}).grows == {"a": "buffer", "5": "cache"}
    assert hints.forecaster("a", LIMIT)._knowledge.growth.grows == "list"
    forecaster = Forecaster(LIMIT, host_limit_bytes=LIMIT)
    hints.apply_to(forecaster, "5", is_secondary_host=True)
    assert forecaster._knowledge.growth.grows == "cache"


@pytest.mark.parametrize(
    ("value", "known"), [(1, 1), (1.9, 1), (2**62 - 1, 2**62 - 1), (2**62, None), (0.9, None)]
)
def test_numbers_are_whole_positive_and_below_2_to_the_62(value, known):
    for name in ("total_steps", "epoch_steps", "max_input_size"):
        assert getattr(Hints().merged_with({name: value}), name) == known


def test_sizes_may_be_zero_and_belong_to_a_device():
    sizes = {"a": 0, "b": 2.7, "c": -1, "d": 2**62, 5: 6, "e": True, "f": None}
    for name in ("optimizer_state_bytes", "eval_bytes", "predicted_peak_bytes", "growth_end_bytes"):
        hints = Hints().merged_with({name: sizes})
        assert getattr(hints, name) == {"a": 0, "b": 2, "5": 6}
        assert hints.merged_with({name: [1]}) == hints
    assert Hints().to_data() == {}


def facts(forecaster: Forecaster) -> tuple:
    return (
        forecaster.limit_bytes, forecaster.host_limit_bytes, forecaster.total_steps,
        forecaster._knowledge.epoch_steps, forecaster._sudden.max_input_size, forecaster._sudden.state_bytes,
        forecaster._sudden.eval_bytes, forecaster._knowledge.predicted_peak_bytes, forecaster._gc_probe,
    )  # fmt: skip


def test_a_forecaster_gets_the_hints_of_its_device():
    hints = Hints(1, 2, 3.0, {"gpu": 4}, {"gpu": 5}, {"gpu": 6, "host": 7})
    assert facts(hints.forecaster("gpu", 9, gc_probe=later)) == (9, None, 1, 2, 3.0, 4, 5, 6, later)
    assert facts(hints.forecaster("host", 9)) == (9, None, 1, 2, 3.0, None, None, 7, None)
    secondary = hints.forecaster("host", 9, is_secondary_host=True, gc_probe=later)
    assert facts(secondary) == (9, 9, 1, 2, None, None, None, None, None)


def test_a_running_secondary_host_learns_the_epochs_only():
    forecaster = Hints().forecaster("host", 9, is_secondary_host=True)
    hints = Hints(1, 2, 3.0, {"host": 4}, {"host": 5}, {"host": 6})
    hints.apply_to(forecaster, "host", is_secondary_host=True)
    assert facts(forecaster) == (9, 9, None, 2, None, None, None, None, None)


def test_hints_are_immutable():
    with pytest.raises(AttributeError):
        Hints().total_steps = 5
