"""Serialize a forecaster, so that another process can continue without reading the past again.

The state holds every attribute of the forecaster's own classes, by name. Only the code that wrote
it can use it, so it carries a digest of this package's sources: another version's state is refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from memagent.forecast.bucketed_series import BucketedSeries
from memagent.forecast.forecaster import Forecaster
from memagent.forecast.gc_check import GarbageCheck, later
from memagent.forecast.hysteresis import CalmGrowth, ForecastHysteresis, GrowthStart
from memagent.forecast.input_high_water import InputHighWaterModel
from memagent.forecast.knowledge import Knowledge
from memagent.forecast.levels import KnownGrowth
from memagent.forecast.overhead import OtherProcesses, UnusableReserve
from memagent.forecast.predecessor import Expectation, Predecessor
from memagent.forecast.projection import Projection
from memagent.forecast.running_statistics import ExcessStatistics, RunningLeastSquares, StepClock
from memagent.forecast.signals import Signals
from memagent.forecast.sudden_peaks import SuddenPeaks
from memagent.forecast.tail import TailRisk
from memagent.forecast.types import Forecast, Trend

_CLASSES = {
    kind.__name__: kind
    for kind in (
        BucketedSeries,
        CalmGrowth,
        ExcessStatistics,
        Expectation,
        Forecast,
        ForecastHysteresis,
        Forecaster,
        GarbageCheck,
        GrowthStart,
        InputHighWaterModel,
        Knowledge,
        KnownGrowth,
        OtherProcesses,
        Predecessor,
        Projection,
        RunningLeastSquares,
        Signals,
        StepClock,
        SuddenPeaks,
        TailRisk,
        Trend,
        UnusableReserve,
    )
}
_FUNCTIONS = {"min": min, "max": max, "later": later}


def dump_state(forecaster: Forecaster) -> bytes:
    """Return the forecaster as bytes. Raises TypeError if its `gc_probe` is the caller's own."""
    return _digest() + zlib.compress(msgspec.msgpack.encode(_to_plain(forecaster)), 1)


def load_state(state: bytes) -> Forecaster | None:
    """Return the forecaster, or None if another version of the code wrote the state."""
    size = len(_digest())
    if state[:size] != _digest():
        return None
    forecaster = _from_plain(msgspec.msgpack.decode(zlib.decompress(state[size:])))
    assert isinstance(forecaster, Forecaster), "the digest vouches for the rest"
    return forecaster


@cache
def _digest() -> bytes:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return blake2b(b"".join(path.read_bytes() for path in sources), digest_size=16).digest()


def _to_plain(value: Any) -> Any:
    """Return plain values. All but lists and scalars become a map of one key, their type."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [_to_plain(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_to_plain(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": {key: _to_plain(item) for key, item in value.items()}}
    kind = type(value)
    if _CLASSES.get(kind.__name__) is kind:
        names = () if kind is RunningLeastSquares else _names(value)
        return {kind.__name__: {name: _to_plain(getattr(value, name)) for name in names}}
    name = getattr(value, "__name__", "")
    if _FUNCTIONS.get(name) is value:
        return {"function": name}
    raise TypeError(f"Cannot serialize a forecaster that holds {value!r}.")


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tuple":
        return tuple(_from_plain(item) for item in content)
    if kind == "dict":
        return {key: _from_plain(item) for key, item in content.items()}
    if kind == "function":
        return _FUNCTIONS[content]
    return _instance(_CLASSES[kind], {name: _from_plain(item) for name, item in content.items()})


def _names(value: Any) -> Iterable[str]:
    names: Iterable[str] = getattr(type(value), "__slots__", None) or vars(value)
    return names


def _instance(kind: type[Any], values: dict[str, Any]) -> Any:
    # sums are left out: the next fit adds all points again
    if issubclass(kind, msgspec.Struct | RunningLeastSquares):
        return kind(**values)
    instance = object.__new__(kind)
    for name, item in values.items():
        setattr(instance, name, item)
    return instance
