"""A forecaster as bytes and back, so that another process can go on where one stopped without reading the past again.

What is kept is every attribute of the forecaster's own small classes, by name. A state is worth something to the very code that wrote it
and to no other: it carries the digest of this package's sources, and what another version wrote is refused.
"""

from __future__ import annotations

import zlib
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from memagent.forecast.bucketed_series import BucketedSeries
from memagent.forecast.forecaster import Forecaster
from memagent.forecast.gc_check import GarbageCheck, later
from memagent.forecast.hysteresis import ForecastHysteresis
from memagent.forecast.input_high_water import InputHighWaterModel
from memagent.forecast.running_statistics import Excess, StepClock
from memagent.forecast.signals import Signals
from memagent.forecast.tail import Tail
from memagent.forecast.trend import Trend
from memagent.forecast.types import Forecast

_CLASSES = {
    each.__name__: each
    for each in (
        Excess,
        Forecast,
        Forecaster,
        GarbageCheck,
        InputHighWaterModel,
        Signals,
        ForecastHysteresis,
        StepClock,
        Tail,
        BucketedSeries,
        Trend,
    )
}
_FUNCTIONS = {"min": min, "max": max, "later": later}


def dump_state(forecaster: Forecaster) -> bytes:
    """All that it knows. Raises TypeError for one whose `gc_probe` is its caller's own."""
    return _digest() + zlib.compress(msgspec.msgpack.encode(_frozen(forecaster)), 1)


def load_state(state: bytes) -> Forecaster | None:
    """The forecaster as it was; None where other code than this wrote the state."""
    size = len(_digest())
    if state[:size] != _digest():
        return None
    found = _thawed(msgspec.msgpack.decode(zlib.decompress(state[size:])))
    assert isinstance(found, Forecaster), "the digest vouches for the rest"
    return found


@cache
def _digest() -> bytes:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return blake2b(b"".join(path.read_bytes() for path in sources), digest_size=16).digest()


def _frozen(value: Any) -> Any:
    """Lists stay lists; all else that is no plain value becomes a map of one key, which says what it is."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [_frozen(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_frozen(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": {key: _frozen(item) for key, item in value.items()}}
    name = type(value).__name__
    if _CLASSES.get(name) is type(value):
        names = getattr(type(value), "__slots__", None) or vars(value)
        return {name: {each: _frozen(getattr(value, each)) for each in names}}
    name = getattr(value, "__name__", "")
    if _FUNCTIONS.get(name) is value:
        return {"function": name}
    raise TypeError(f"a forecaster that holds {value!r} cannot be remembered")


def _thawed(value: Any) -> Any:
    if isinstance(value, list):
        return [_thawed(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tuple":
        return tuple(_thawed(item) for item in content)
    if kind == "dict":
        return {key: _thawed(item) for key, item in content.items()}
    if kind == "function":
        return _FUNCTIONS[content]
    made = object.__new__(_CLASSES[kind])
    for name, item in content.items():
        object.__setattr__(made, name, _thawed(item))
    return made
