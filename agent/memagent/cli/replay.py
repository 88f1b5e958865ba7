"""Replay a recorded run and print what the forecaster would have warned of, and when.

FILE is a run file, the CSV of memagent export, or JSON with limit_bytes and columns. Try another
limit, or find out why a forecast was right or wrong."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from memagent.errors import SettingError
from memagent.forecast.types import PAGING_LEVELS
from memagent.local_forecast.monitor import risk_of, warning_text
from memagent.replay import ReplayedForecast, ReplayTrace, read_trace, replay
from memagent.units import format_bytes, parse_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="NAME.memagent, .csv or .json")
    parser.add_argument(
        "--limit", metavar="SIZE", help="another limit for the training device, as in 24GiB"
    )
    parser.add_argument(
        "--total-steps", type=int, metavar="N", help="another number of planned steps"
    )
    parser.add_argument(
        "--rank",
        type=int,
        metavar="N",
        help="rank of a CSV with several ranks (default: the first)",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="print the forecast after every sample, not only changes of the level",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    if arguments.total_steps is not None and arguments.total_steps < 1:
        raise SettingError(f"--total-steps must be 1 or more, got {arguments.total_steps}")
    limit = None if arguments.limit is None else parse_bytes(arguments.limit)
    trace = read_trace(
        arguments.file, rank=arguments.rank, limit_bytes=limit, total_steps=arguments.total_steps
    )
    forecasts = list(replay(trace))
    selection = forecasts if arguments.all else changes(forecasts)
    if arguments.json:
        print(json.dumps(_to_json(trace, forecasts, selection), indent=2))
    else:
        lines = [_line(trace, replayed) for replayed in selection]
        print("\n".join([_first_line(trace, forecasts), *lines, _last_line(trace, forecasts)]))
    return 0


def changes(forecasts: Sequence[ReplayedForecast]) -> list[ReplayedForecast]:
    """Return the forecasts at which the level of a device changes; all start with `ok`."""
    levels: dict[str, str] = {}
    changed = []
    for replayed in forecasts:
        if replayed.forecast.level != levels.get(replayed.device.id, "ok"):
            changed.append(replayed)
        levels[replayed.device.id] = replayed.forecast.level
    return changed


def _first_warning(forecasts: Sequence[ReplayedForecast]) -> int | None:
    return next(
        (
            replayed.forecast.step
            for replayed in forecasts
            if replayed.forecast.level in PAGING_LEVELS
        ),
        None,
    )


def _to_json(
    trace: ReplayTrace, forecasts: Sequence[ReplayedForecast], selection: Sequence[ReplayedForecast]
) -> dict[str, Any]:
    return {
        "run_id": trace.run_id,
        "rank": trace.rank,
        "status": trace.status,
        "oom_step": trace.oom_step,
        "samples": len(forecasts),
        "devices": [
            {"id": device.id, "name": device.name, "limit_bytes": device.limit_bytes}
            for device in trace.devices
        ],
        "first_warning_step": _first_warning(forecasts),
        "forecasts": [
            {"device": replayed.device.id, **structs.asdict(replayed.forecast)}
            for replayed in selection
        ],
    }


def _first_line(trace: ReplayTrace, forecasts: Sequence[ReplayedForecast]) -> str:
    limits = ", ".join(
        f"{device.name} {format_bytes(device.limit_bytes)}"
        for device in trace.devices
        if device.limit_bytes
    )
    return f"run {trace.run_id}, rank {trace.rank}: {len(forecasts):,} samples; limit of {limits}"


def _line(trace: ReplayTrace, replayed: ReplayedForecast) -> str:
    forecast = replayed.forecast
    if forecast.level in PAGING_LEVELS:
        return warning_text(risk_of(trace.rank, replayed.device, forecast), replayed.device.name)
    chance = f", {forecast.oom_probability:.0%} to run out" if forecast.level != "ok" else ""
    return f"step {forecast.step:,}: {replayed.device.name}: {forecast.level}{chance}"


def _last_line(trace: ReplayTrace, forecasts: Sequence[ReplayedForecast]) -> str:
    first = _first_warning(forecasts)
    warned = "no warning" if first is None else f"first warning at step {first:,}"
    if trace.oom_step is None:
        return f"{warned}; the run ended as {trace.status}" if trace.status else warned
    lead = "" if first is None else f", {trace.oom_step - first:,} steps later"
    return f"{warned}; out of memory at step {trace.oom_step:,}{lead}"
