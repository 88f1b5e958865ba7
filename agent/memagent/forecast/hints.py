"""What a forecaster can be told beside the samples: by the script, by a preflight, by the estimator. The same words on both sides.

The agent sends them as events: `hints` (what the script and its optimizers say) and `preflight` (what a trial showed); see docs/wire.md.
A later one adds to the ones before. `Hints` turns them into a `Forecaster` for a device, and samples into what that one watches.

A host beside GPUs is no device that a model trains on: all that counts there is that its memory grows, whatever for. Its samples are
taken as `host_rss_bytes` alone, so that the cause is `host_memory` and is believed as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memagent.forecast.forecaster import Forecaster
from memagent.forecast.gc_check import GcProbe

_SIZES = ("optimizer_state_bytes", "eval_bytes", "predicted_peak_bytes")
_NUMBERS = ("total_steps", "epoch_steps", "max_input_size")


@dataclass(frozen=True)
class Hints:
    """One rank's. Sizes are bytes by device id; whatever is not known is None, or not in its mapping.

    total_steps, epoch_steps: optimizer steps. max_input_size: elements, as in the column `input_size`. optimizer_state_bytes: what the
    optimizer's first step will allocate. eval_bytes: how far the largest of the first evaluation and checkpoint goes above what is held.
    """

    total_steps: int | None = None
    epoch_steps: int | None = None
    max_input_size: float | None = None
    optimizer_state_bytes: Mapping[str, int] = field(default_factory=dict)
    eval_bytes: Mapping[str, int] = field(default_factory=dict)
    predicted_peak_bytes: Mapping[str, int] = field(default_factory=dict)

    def merged_with(self, data: Mapping[str, Any]) -> Hints:
        """These and those of an event's `data`. What is malformed or unknown there is passed over: it may be of a newer agent."""
        known: dict[str, Any] = {
            name: int(data[name]) for name in _NUMBERS if _is_size(data.get(name))
        }
        known |= {
            name: {**getattr(self, name), **_sizes(data[name])} for name in _SIZES if name in data
        }
        return replace(self, **known)

    def to_data(self) -> dict[str, Any]:
        """What is known, as an event's `data`."""
        found = {name: getattr(self, name) for name in (*_NUMBERS, *_SIZES)}
        return {
            name: dict(value) if name in _SIZES else value for name, value in found.items() if value
        }

    def forecaster(
        self,
        device: str,
        limit_bytes: int,
        *,
        is_secondary_host: bool = False,
        gc_probe: GcProbe | None = None,
    ) -> Forecaster:
        """For samples of `device`; `is_secondary_host`: it is the host of a rank that trains on GPUs. Raises ValueError as Forecaster does."""
        if is_secondary_host:
            return Forecaster(
                limit_bytes,
                host_limit_bytes=limit_bytes,
                total_steps=self.total_steps,
                epoch_steps=self.epoch_steps,
            )
        made = Forecaster(limit_bytes, total_steps=self.total_steps, gc_probe=gc_probe)
        self.apply_to(made, device)
        return made

    def apply_to(
        self, forecaster: Forecaster, device: str, *, is_secondary_host: bool = False
    ) -> None:
        """Tell a forecaster that is at work already."""
        if is_secondary_host:
            forecaster.learn(epoch_steps=self.epoch_steps)
            return
        forecaster.learn(
            epoch_steps=self.epoch_steps,
            max_input_size=self.max_input_size,
            **{name: getattr(self, name).get(device) for name in _SIZES},
        )


def select_columns(
    columns: Mapping[str, Sequence[Any]], *, is_secondary_host: bool
) -> Mapping[str, Sequence[Any]]:
    """The columns that a forecaster made with `is_secondary_host` is fed."""
    if not is_secondary_host or "allocated_bytes" not in columns:
        return columns
    kept = {name: columns[name] for name in ("step", "time_s", "phase") if name in columns}
    return {
        **kept,
        "host_rss_bytes": columns["allocated_bytes"],
    }  # on a host: what counts against its limit


def _sizes(value: Any) -> dict[str, int]:
    items = value.items() if isinstance(value, Mapping) else ()
    return {str(device): int(size) for device, size in items if _is_size(size, least=0)}


def _is_size(value: Any, least: int = 1) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value < 2**62
