"""Replay of a recorded run: the same feed and hints as in the training process and on the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from memagent.forecast import Forecast, Forecaster, Hints, feed_columns, select_columns
from memagent.wire.columns import Value
from memagent.wire.messages import Device


@dataclass(frozen=True)
class Piece:
    """Consecutive samples of one device, and what was known ahead when they came."""

    device: str
    columns: Mapping[str, Sequence[Value]]
    hints: Hints


@dataclass(frozen=True)
class Trace:
    """`pieces` in the order in which they came; the model trains on the first of `devices`. `status`: how the run
    ended, if it said so."""

    run_id: str
    rank: int
    devices: Sequence[Device]
    pieces: Sequence[Piece] = field(repr=False)
    status: str | None = None
    oom_step: int | None = None


@dataclass(frozen=True)
class ReplayedForecast:
    """The forecast after one row of a device."""

    device: Device
    forecast: Forecast


def replay(trace: Trace) -> Iterator[ReplayedForecast]:
    """The forecast after each row. Rows of a device without a limit say nothing."""
    devices = {device.id: device for device in trace.devices}
    forecasters: dict[str, Forecaster] = {}
    for piece in trace.pieces:
        device = devices.get(piece.device)
        if device is None or not device.limit_bytes:
            continue
        is_secondary_host = device.kind == "host" and device.id != trace.devices[0].id
        if device.id not in forecasters:
            forecasters[device.id] = piece.hints.forecaster(
                device.id, device.limit_bytes, is_secondary_host=is_secondary_host
            )
        piece.hints.apply_to(forecasters[device.id], device.id, is_secondary_host=is_secondary_host)
        for forecast in feed_columns(
            forecasters[device.id],
            select_columns(piece.columns, is_secondary_host=is_secondary_host),
        ):
            yield ReplayedForecast(device, forecast)
