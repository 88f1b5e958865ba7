"""Replay of a recorded run, with the same hints as in the training process and on the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from memagent.forecast import Forecast, Forecaster, Hints, feed_columns, select_columns
from memagent.wire.columns import Value
from memagent.wire.messages import Device


@dataclass(frozen=True)
class TracePart:
    """Consecutive samples of one device, and the hints that were known when they arrived."""

    device: str
    columns: Mapping[str, Sequence[Value]]
    hints: Hints


@dataclass(frozen=True)
class ReplayTrace:
    """A recorded run of one rank; the model trains on the first of `devices`.

    `status` is the end of the run, None if the recording has none.
    """

    run_id: str
    rank: int
    devices: Sequence[Device]
    parts: Sequence[TracePart] = field(repr=False)
    status: str | None = None
    oom_step: int | None = None


@dataclass(frozen=True)
class ReplayedForecast:
    """Forecast after one row of a device."""

    device: Device
    forecast: Forecast


def replay(trace: ReplayTrace) -> Iterator[ReplayedForecast]:
    """Yield the forecast after each row; skip devices without a limit."""
    devices = {device.id: device for device in trace.devices}
    forecasters: dict[str, Forecaster] = {}
    for part in trace.parts:
        device = devices.get(part.device)
        if device is None or not device.limit_bytes:
            continue
        is_secondary_host = device.kind == "host" and device.id != trace.devices[0].id
        if device.id not in forecasters:
            forecasters[device.id] = part.hints.forecaster(
                device.id,
                device.limit_bytes,
                device_bytes=device.shared_bytes,
                is_secondary_host=is_secondary_host,
            )
        part.hints.apply_to(forecasters[device.id], device.id, is_secondary_host=is_secondary_host)
        for forecast in feed_columns(
            forecasters[device.id],
            select_columns(part.columns, is_secondary_host=is_secondary_host),
        ):
            yield ReplayedForecast(device, forecast)
