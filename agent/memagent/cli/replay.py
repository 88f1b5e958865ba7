"""Feed a recorded run to the forecaster and print what it would have warned of, and when: a run file, the CSV of memagent export, or
JSON with limit_bytes and columns. For asking what another limit would have meant, and why a forecast was right or wrong."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from memagent.errors import SettingError
from memagent.forecast.types import PAGING_LEVELS
from memagent.local_forecast.monitor import risk_of, warning_text
from memagent.replay import ReplayedForecast, Trace, read_trace, replay
from memagent.units import format_bytes, parse_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="NAME.memagent, .csv or .json")
    parser.add_argument(
        "--limit", metavar="SIZE", help="another limit for the device trained on, as in 24GiB"
    )
    parser.add_argument(
        "--total-steps", type=int, metavar="N", help="another number of planned steps"
    )
    parser.add_argument(
        "--rank", type=int, metavar="N", help="of a CSV with several ranks; default the first"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="the forecast after every sample, not only where the level changes",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    if arguments.total_steps is not None and arguments.total_steps < 1:
        raise SettingError(f"--total-steps is {arguments.total_steps}: give 1 or more")
    limit = None if arguments.limit is None else parse_bytes(arguments.limit)
    trace = read_trace(
        arguments.file, rank=arguments.rank, limit_bytes=limit, total_steps=arguments.total_steps
    )
    said = list(replay(trace))
    shown = said if arguments.all else changes(said)
    if arguments.json:
        print(json.dumps(_facts(trace, said, shown), indent=2))
    else:
        print(
            "\n".join(
                [_head(trace, said), *(_line(trace, one) for one in shown), _end(trace, said)]
            )
        )
    return 0


def changes(said: Sequence[ReplayedForecast]) -> list[ReplayedForecast]:
    """Where the level of a device is another than before; all begin with `ok`."""
    levels: dict[str, str] = {}
    found = []
    for one in said:
        if one.forecast.level != levels.get(one.device.id, "ok"):
            found.append(one)
        levels[one.device.id] = one.forecast.level
    return found


def _first_warning(said: Sequence[ReplayedForecast]) -> int | None:
    return next((one.forecast.step for one in said if one.forecast.level in PAGING_LEVELS), None)


def _facts(
    trace: Trace, said: Sequence[ReplayedForecast], shown: Sequence[ReplayedForecast]
) -> dict[str, Any]:
    return {
        "run_id": trace.run_id,
        "rank": trace.rank,
        "status": trace.status,
        "oom_step": trace.oom_step,
        "samples": len(said),
        "devices": [
            {"id": one.id, "name": one.name, "limit_bytes": one.limit_bytes}
            for one in trace.devices
        ],
        "first_warning_step": _first_warning(said),
        "forecasts": [{"device": one.device.id, **asdict(one.forecast)} for one in shown],
    }


def _head(trace: Trace, said: Sequence[ReplayedForecast]) -> str:
    limits = ", ".join(
        f"{one.name} {format_bytes(one.limit_bytes)}" for one in trace.devices if one.limit_bytes
    )
    return f"run {trace.run_id}, rank {trace.rank}: {len(said):,} samples; limit of {limits}"


def _line(trace: Trace, one: ReplayedForecast) -> str:
    forecast = one.forecast
    if forecast.level in PAGING_LEVELS:
        return warning_text(risk_of(trace.rank, one.device, forecast), one.device.name)
    chance = f", {forecast.oom_probability:.0%} to run out" if forecast.level != "ok" else ""
    return f"step {forecast.step:,}: {one.device.name}: {forecast.level}{chance}"


def _end(trace: Trace, said: Sequence[ReplayedForecast]) -> str:
    first = _first_warning(said)
    warned = "no warning" if first is None else f"first warning at step {first:,}"
    if trace.oom_step is None:
        return f"{warned}; the run ended as {trace.status}" if trace.status else warned
    lead = "" if first is None else f", {trace.oom_step - first:,} steps later"
    return f"{warned}; out of memory at step {trace.oom_step:,}{lead}"
