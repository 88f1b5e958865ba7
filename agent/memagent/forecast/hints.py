"""Hints: what the script, a preflight or the estimator knows in addition to the samples.

The agent sends them as events: `hints` (from the script, its optimizers and the leak finder) and
`preflight` (from a preflight run); see docs/wire.md. Later hints add to earlier ones. The agent and
the server build their forecasters from the same `Hints`.

A rank that trains on GPUs also has a *secondary host*. No model trains there: all that counts is
whether its memory grows. Its samples are taken as `host_rss_bytes` alone, so that the cause is
`host_memory`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from memagent.forecast.forecaster import Forecaster
from memagent.forecast.gc_check import GcProbe
from memagent.forecast.predecessor import Predecessor
from memagent.forecast.types import GROWING, Growing

_SIZES = ("optimizer_state_bytes", "eval_bytes", "predicted_peak_bytes", "growth_end_bytes")
_NUMBERS = ("total_steps", "epoch_steps", "max_input_size")


class Hints(msgspec.Struct, frozen=True):
    """Hints of one rank. Sizes are bytes by device id; what isn't known is None or missing."""

    total_steps: int | None = None
    """Planned optimizer steps."""
    epoch_steps: int | None = None
    """Optimizer steps per epoch."""
    max_input_size: float | None = None
    """Elements of the largest input, as in the column `input_size`."""
    optimizer_state_bytes: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Allocated by the optimizer's first step."""
    eval_bytes: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Needed above the floor by the first evaluation or checkpoint, whichever needs more."""
    predicted_peak_bytes: Mapping[str, int] = msgspec.field(default_factory=dict)
    grows: Mapping[str, Growing] = msgspec.field(default_factory=dict)
    """What keeps the growing memory, by device id."""
    growth_end_bytes: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Held after a step once a growing buffer is full."""
    predecessor: Mapping[str, Predecessor] = msgspec.field(default_factory=dict)
    """The last run of the same program, by device id of this run."""

    def merged_with(self, data: Mapping[str, Any]) -> Hints:
        """Return these hints and those of an event's `data`.

        Malformed and unknown fields are skipped: they may come from a newer agent.
        """
        fields: dict[str, Any] = {
            name: int(data[name]) for name in _NUMBERS if _is_size(data.get(name))
        }
        fields |= {
            name: {**getattr(self, name), **_sizes(data[name])} for name in _SIZES if name in data
        }
        fields["grows"] = {**self.grows, **_growing(data.get("grows"))}
        fields["predecessor"] = {**self.predecessor, **_predecessors(data.get("predecessor"))}
        return msgspec.structs.replace(self, **fields)

    def to_data(self) -> dict[str, Any]:
        """Return the known hints as an event's `data`."""
        fields = {name: getattr(self, name) for name in (*_NUMBERS, *_SIZES, "grows")}
        data = {
            name: dict(value) if isinstance(value, Mapping) else value
            for name, value in fields.items()
            if value
        }
        predecessors = msgspec.to_builtins(self.predecessor)
        return {**data, "predecessor": predecessors} if predecessors else data

    def forecaster(
        self,
        device: str,
        limit_bytes: int,
        *,
        device_bytes: float | None = None,
        is_secondary_host: bool = False,
        gc_probe: GcProbe | None = None,
    ) -> Forecaster:
        """Return a forecaster for samples of `device`. Raises ValueError like Forecaster."""
        if is_secondary_host:
            return Forecaster(
                limit_bytes,
                host_limit_bytes=limit_bytes,
                total_steps=self.total_steps,
                epoch_steps=self.epoch_steps,
            )
        forecaster = Forecaster(
            limit_bytes, device_bytes=device_bytes, total_steps=self.total_steps, gc_probe=gc_probe
        )
        self.apply_to(forecaster, device)
        return forecaster

    def apply_to(
        self, forecaster: Forecaster, device: str, *, is_secondary_host: bool = False
    ) -> None:
        """Pass the hints to an existing forecaster."""
        if is_secondary_host:
            forecaster.learn(epoch_steps=self.epoch_steps, grows=self.grows.get(device))
            return
        forecaster.learn(
            epoch_steps=self.epoch_steps,
            max_input_size=self.max_input_size,
            grows=self.grows.get(device),
            predecessor=self.predecessor.get(device),
            **{name: getattr(self, name).get(device) for name in _SIZES},
        )


def _sizes(value: Any) -> dict[str, int]:
    items = value.items() if isinstance(value, Mapping) else ()
    return {str(device): int(size) for device, size in items if _is_size(size, minimum=0)}


def _growing(value: Any) -> dict[str, Growing]:
    items = value.items() if isinstance(value, Mapping) else ()
    return {str(device): kind for device, kind in items if kind in GROWING}


def _predecessors(value: Any) -> dict[str, Predecessor]:
    try:
        return msgspec.convert(value or {}, dict[str, Predecessor])
    except msgspec.ValidationError:
        return {}


def _is_size(value: Any, minimum: int = 1) -> bool:
    # a bool is an int, too
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and minimum <= value < 2**62
