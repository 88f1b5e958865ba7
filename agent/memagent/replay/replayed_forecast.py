"""Pieces of a trace into forecasters, as they came: the same `feed` and hints as in the training process and on the server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memagent.forecast import Forecast, Forecaster, feed, watched
from memagent.replay.trace import Trace
from memagent.wire.messages import Device


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
        beside = device.kind == "host" and device.id != trace.devices[0].id
        if device.id not in forecasters:
            forecasters[device.id] = piece.hints.forecaster(
                device.id, device.limit_bytes, beside=beside
            )
        piece.hints.teach(forecasters[device.id], device.id, beside=beside)
        for forecast in feed(forecasters[device.id], watched(piece.columns, beside=beside)):
            yield ReplayedForecast(device, forecast)
