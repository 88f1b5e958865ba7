"""A restored forecaster continues as if it had never stopped, on every trace."""

from __future__ import annotations

import itertools
import zlib

import msgspec
import pytest

from benchmarks.forecast import generated, gpu_recorded, recorded
from memagent.forecast import Forecaster, later
from memagent.forecast import state as state_module
from memagent.forecast.replay_columns import feed_columns
from memagent.forecast.running_statistics import RunningLeastSquares
from memagent.forecast.types import Forecast


def forecasts(trace, *, stops: bool) -> list:
    """Return the forecasts of a trace. With `stops`, dump and load the forecaster at each stop."""
    forecaster = Forecaster(trace.limit_bytes, gc_probe=later, **trace.options)
    rows, series = len(trace.columns["step"]), []
    parts = 7 if stops else 1
    for part in range(parts):
        first, last = rows * part // parts, rows * (part + 1) // parts
        series += feed_columns(
            forecaster, {name: values[first:last] for name, values in trace.columns.items()}
        )
        if stops:
            forecaster = state_module.load_state(state_module.dump_state(forecaster))
    return series


@pytest.mark.parametrize("which", ["recorded", "made"])
def test_a_restored_forecaster_continues_identically(which):
    traces = list(recorded.traces())[:12] if which == "recorded" else list(generated.traces(1, 7))
    assert len(traces) > 8
    for trace in traces:
        assert forecasts(trace, stops=True) == forecasts(trace, stops=False), trace.family


def forecasts_afresh(trace) -> list:
    """Return the forecasts of a trace if each fit adds up its series from the start."""
    forecaster = Forecaster(trace.limit_bytes, gc_probe=later, **trace.options)
    series = []
    for forecast in feed_columns(forecaster, trace.columns):
        series.append(forecast)
        for one in forecaster._signals._series.values():
            one.lines = RunningLeastSquares()
    return series


def test_sums_kept_between_fits_change_no_forecast():
    traces = [*itertools.islice(recorded.traces(), 0, None, 5)]
    traces += itertools.islice(gpu_recorded.traces(), 0, 40, 20)
    assert len(traces) > 5
    for trace in traces:
        assert forecasts_afresh(trace) == forecasts(trace, stops=False), trace.family


def test_a_state_is_small():
    trace = max(recorded.traces(), key=lambda trace: len(trace.columns["step"]))
    forecaster = Forecaster(trace.limit_bytes)
    list(feed_columns(forecaster, trace.columns))
    assert len(state_module.dump_state(forecaster)) < 10_000


def test_state_of_other_code_is_refused(monkeypatch):
    state = state_module.dump_state(Forecaster(2**30))
    assert state_module.load_state(state).limit_bytes == 2**30
    monkeypatch.setattr(state_module, "_digest", lambda: b"another version!")
    assert state_module.load_state(state) is None


def test_a_probe_of_the_caller_cannot_be_serialized():
    with pytest.raises(TypeError, match="Cannot serialize"):
        state_module.dump_state(Forecaster(2**30, gc_probe=lambda: None))


def test_a_state_begins_with_a_digest_of_sixteen_bytes_and_is_compressed():
    forecaster = Forecaster(2**30)
    for step in range(500):
        forecaster.update(step, allocated_bytes=step)
    state = state_module.dump_state(forecaster)
    assert state[:16] == state_module._digest() and len(state_module._digest()) == 16
    plain = zlib.decompress(state[16:])
    assert len(plain) > 2 * len(state)
    assert msgspec.msgpack.decode(plain)["Forecaster"]["limit_bytes"] == 2**30
    assert state_module.load_state(b"") is None


def test_a_forecast_is_immutable():
    with pytest.raises(AttributeError):
        Forecast(1).step = 2
    assert Forecast(1) == Forecast(1, "ok", 0.0, *[None] * 9)
