"""Readers of recorded runs: run files, the CSV of `memagent export`, and JSON with columns.

SettingError names the fault of any other file.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from memagent.delivery.run_file import SUFFIX, read_frames
from memagent.errors import SettingError, WireError
from memagent.forecast import Hints
from memagent.replay.replay import ReplayTrace, TracePart
from memagent.wire.codec import decode
from memagent.wire.columns import Value, unpack
from memagent.wire.fields import SCALARS_STREAM, kind_of
from memagent.wire.messages import Batch, Device, DeviceKind, Finish, PredictionMessage, RunStart

_HINTS = ("hints", "preflight")


def read_trace(
    path: Path,
    *,
    rank: int | None = None,
    limit_bytes: int | None = None,
    total_steps: int | None = None,
) -> ReplayTrace:
    """Read a trace by the suffix of `path`.

    `limit_bytes` (of the training device) and `total_steps` replace the recorded values.
    """
    try:
        trace = _read(path, rank)
    except FileNotFoundError as error:
        raise SettingError(f"{path} does not exist") from error
    except (OSError, WireError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingError(
            f"{path} cannot be replayed ({type(error).__name__}: {error}): give a run file "
            f"({SUFFIX}), the CSV of `memagent export`, or JSON with limit_bytes and columns"
        ) from error
    trace = _with(trace, limit_bytes, total_steps)
    if not any(device.limit_bytes for device in trace.devices):
        raise SettingError("This recording has no limit: give one, as in --limit 24GiB.")
    return trace


def _read(path: Path, rank: int | None) -> ReplayTrace:
    if path.suffix == ".csv":
        return _read_csv(path, rank)
    return _read_json(path) if path.suffix == ".json" else _read_run_file(path)


def _with(trace: ReplayTrace, limit_bytes: int | None, total_steps: int | None) -> ReplayTrace:
    devices, parts = list(trace.devices), trace.parts
    if limit_bytes is not None and devices:
        devices[0] = structs.replace(devices[0], limit_bytes=limit_bytes)
    if total_steps is not None:
        parts = [
            replace(part, hints=structs.replace(part.hints, total_steps=total_steps))
            for part in parts
        ]
    return replace(trace, devices=devices, parts=parts)


# -- run files ---------------------------------------------------------------------------------


def _read_run_file(path: Path) -> ReplayTrace:
    frames = list(read_frames(path))
    if not frames:
        raise WireError("the file holds no run")
    start = decode(frames[0][1], RunStart)
    hints, parts, status, oom_step = (
        Hints(total_steps=start.total_steps),
        list[TracePart](),
        None,
        None,
    )
    for kind, body in frames[1:]:
        if kind == "prediction":
            prediction = decode(body, PredictionMessage)
            hints = hints.merged_with(
                {"predicted_peak_bytes": {prediction.device: prediction.peak_allocated_bytes}}
            )
        elif kind == "finish":
            status = decode(body, Finish).status
        elif kind == "batch":
            batch = decode(body, Batch)
            for event in batch.events:
                hints = hints.merged_with(event.data) if event.kind in _HINTS else hints
                oom_step = event.step if event.kind == "oom" else oom_step
            parts += _parts(batch, hints)
    return ReplayTrace(start.run_id, start.rank, start.devices, parts, status, oom_step)


def _parts(batch: Batch, hints: Hints) -> Iterator[TracePart]:
    for chunk in batch.chunks:
        if chunk.stream != SCALARS_STREAM:
            columns = unpack(chunk.packed) if chunk.packed is not None else chunk.columns or {}
            yield TracePart(chunk.stream, columns, hints)


# -- CSV and JSON ------------------------------------------------------------------------------


def _read_csv(path: Path, rank: int | None) -> ReplayTrace:
    """Read one rank, by default the first one, in its newest attempt."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["device"] != SCALARS_STREAM]
    ranks = sorted({int(row["rank"]) for row in rows})
    chosen = ranks[0] if rank is None and ranks else rank
    rows = [row for row in rows if int(row["rank"]) == chosen]
    if not rows:
        raise ValueError(f"no samples of rank {chosen}; the file has ranks {ranks}")
    newest = max(int(row["attempt"]) for row in rows)
    rows = [row for row in rows if int(row["attempt"]) == newest]
    names = dict.fromkeys(row["device"] for row in rows)
    streams = {name: _columns([row for row in rows if row["device"] == name]) for name in names}
    # The first device is the one trained on: never the host, if there is a GPU.
    ordered = sorted(streams, key=lambda name: name == "host")
    return _trace(path.stem, chosen or 0, {name: streams[name] for name in ordered})


def _columns(rows: Sequence[Mapping[str, str]]) -> dict[str, list[Value]]:
    names = [
        name
        for name in rows[0]
        if name not in ("rank", "device", "attempt") and any(row[name] for row in rows)
    ]
    return {name: [_value(name, row[name]) for row in rows] for name in names}


def _value(name: str, text: str) -> Value:
    if text == "":
        return None
    return int(text) if kind_of(name) == "int" else float(text)


def _read_json(path: Path) -> ReplayTrace:
    """Read `{"limit_bytes": 1, "total_steps": 2, "columns": {"step": [], "allocated_bytes": []}}`.

    Only `columns` is required.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    columns: dict[str, list[Value]] = content["columns"]
    if len({len(column) for column in columns.values()}) != 1:
        raise ValueError("all columns must have the same number of rows")
    if not all(
        value is None or isinstance(value, int | float)
        for column in columns.values()
        for value in column
    ):
        raise ValueError("columns may only hold numbers and null")
    columns.setdefault("step", list(range(1, len(next(iter(columns.values()))) + 1)))
    trace = _trace(path.stem, 0, {str(content.get("device", "cuda0")): columns})
    return _with(trace, content.get("limit_bytes"), content.get("total_steps"))


def _trace(
    run_id: str, rank: int, streams: Mapping[str, Mapping[str, Sequence[Value]]]
) -> ReplayTrace:
    devices = []
    for name, columns in streams.items():
        limits = [int(limit) for limit in columns.get("limit_bytes", ()) if limit]
        kind: DeviceKind = "host" if name == "host" else "cuda"
        devices.append(
            Device(id=name, kind=kind, name=name, limit_bytes=limits[-1] if limits else None)
        )
    return ReplayTrace(
        run_id,
        rank,
        devices,
        [TracePart(name, columns, Hints()) for name, columns in streams.items()],
    )
