"""Stored runs of a folder of run files, in the terms of the HTTP API.

Files have no alerts and no forecasts of a server; what the agent recorded itself is all there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from memagent.api.source import Fields, RunSelection, RunsPage, SampleSelection
from memagent.delivery.local_runs import recorded_runs
from memagent.delivery.run_file import read_frames
from memagent.delivery.upload import Upload, find_files
from memagent.errors import MemagentError
from memagent.filters.columns import RUN_COLUMNS, column_of, order_of
from memagent.filters.expression import RunColumn, config_values, matches
from memagent.wire.codec import decode, to_builtins
from memagent.wire.columns import Value, pack, read_header, unpack
from memagent.wire.console import newest_lines
from memagent.wire.fields import SCALARS_STREAM, kind_of, scalar_kind_of
from memagent.wire.messages import (
    Batch,
    Chunk,
    ConsoleLine,
    Finish,
    PredictionMessage,
    RunStart,
    SnapshotMessage,
)
from memagent.wire.sample_stream import SampleFrame

Message = TypeVar("Message")
_OF_SUMMARIES = [RunColumn("run", (name,)) for name in ("created_at", "name", "peak_ratio")]
_SUSPECT = {"file": "", "line": 0, "function": None, "bytes_per_step": None, "fix": ""}


class FolderStore:
    """Run files of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = str(folder)
        if not folder.is_dir():
            raise MemagentError(f"{folder} is not a folder of run files, a server or a database.")

    def page(self, selection: RunSelection, cursor: str | None) -> RunsPage:
        """Return all runs: files are read whole anyway."""
        files: dict[str, list[Upload]] = {}
        order, is_falling = order_of(selection.order)
        # reading what summaries lack takes time
        is_detailed = order not in _OF_SUMMARIES or any(
            (selection.tags, selection.where, selection.q, selection.columns)
        )
        for file in find_files([self.folder]) if is_detailed else ():
            files.setdefault(str(file.run_id), []).append(file)
        runs = [
            (run, _described(run, files[run["id"]]) if is_detailed else _listed(run))
            for run in recorded_runs(self.folder)
            if _is_selected(run, selection, files)
        ]
        runs.sort(key=lambda item: (_sort_key(item[1], order), item[0]["id"]), reverse=is_falling)
        # runs without a value are last either way
        runs.sort(key=lambda item: not _known(item[1], order))
        columns = {name: column_of(name, "columns") for name in selection.columns}
        return RunsPage(
            [{**run, "columns": _chosen(described, columns)} for run, described in runs]
        )

    def run(self, run_id: str) -> Fields:
        summary = next((run for run in recorded_runs(self.folder) if run["id"] == run_id), None)
        if summary is None:
            raise MemagentError(f"Run {run_id!r} does not exist in {self.folder}.")
        return _described(summary, self._files(run_id))

    def part(self, run_id: str, name: str) -> Fields:
        files = self._files(run_id)
        if name == "suspects":
            return {"run_id": run_id, "suspects": list(_suspects(files))}
        if name == "predictions":
            newest_last = _messages(files, "prediction", PredictionMessage)
            return {
                "run_id": run_id,
                "predictions": [to_builtins(item) for item in newest_last][::-1],
            }
        return {"run_id": run_id, name: [], "forecasts": [], "history": []}

    def console(self, run_id: str, rank: int | None) -> Fields:
        return _console(run_id, self._files(run_id), rank)

    def frames(self, run_id: str, selection: SampleSelection) -> Iterator[SampleFrame]:
        files = self._files(run_id)
        for file in sorted(files, key=lambda file: (file.attempt or 0, file.rank or 0)):
            if selection.ranks and file.rank not in selection.ranks:
                continue
            chunks = [chunk for batch in _batches([file]) for chunk in batch.chunks]
            for stream in dict.fromkeys(chunk.stream for chunk in chunks):
                if (stream == SCALARS_STREAM) != selection.of_scalars:
                    continue
                for chunk in chunks:
                    if chunk.stream == stream:
                        packed = _packed(chunk)
                        yield SampleFrame(file.rank or 0, file.attempt or 0, stream, 0, packed)

    def send(self, method: str, path: str, body: Fields | None = None) -> Fields:
        raise MemagentError(f"{self.folder} holds run files: this needs a server or a database.")

    def close(self) -> None:
        """Do nothing: files are closed after each read."""

    def _files(self, run_id: str) -> list[Upload]:
        files = [file for file in find_files([self.folder]) if file.run_id == run_id]
        if not files:
            raise MemagentError(f"Run {run_id!r} does not exist in {self.folder}.")
        return files


def _is_selected(run: Fields, selection: RunSelection, files: Mapping[str, list[Upload]]) -> bool:
    """Return True for a run to list; `files` are those of each run, if the selection needs them."""
    wanted = {"project": selection.project, "status": selection.status}
    is_other = any(value is not None and run[name] != value for name, value in wanted.items())
    if is_other or selection.is_archived:
        return False
    if not (selection.tags or selection.where or selection.q):
        return not files or run["id"] in files
    if run["id"] not in files:  # recorded since
        return False
    described = _described(run, files[run["id"]])
    if not set(selection.tags) <= set(described["tags"]):
        return False
    text = " ".join(str(described[name] or "") for name in ("id", "name", "project", "user"))
    if any(word.lower() not in text.lower() for word in (selection.q or "").split()):
        return False
    return selection.where is None or matches(selection.where, lambda c: _values(described, c))


def _listed(summary: Fields) -> Fields:
    peak, limit = summary["peak_bytes"], summary["limit_bytes"]
    ratio = peak / limit if peak and limit else 0.0
    return {**summary, "created_at": summary["started_at"], "peak_ratio": ratio}


def _described(summary: Fields, files: list[Upload]) -> Fields:
    """Return a run as `GET /api/v1/runs/{id}` describes it, as far as files know."""
    newest = max(file.attempt or 0 for file in files)
    current = [file for file in files if file.attempt == newest]
    starts = _messages(current, "start", RunStart)
    start = min(starts, key=lambda item: item.rank)
    finishes = _messages(current, "finish", Finish)
    return {
        **_listed(summary),
        "finished_at": max((item.finished_at or 0 for item in finishes), default=None),
        "error": next((item.error for item in finishes if item.error), None),
        "world_size": start.world_size,
        "config": start.config,
        "tags": start.tags,
        "notes": "",
        "resources": dict.fromkeys(("gpu_hours", "energy_kwh", "cost", "currency")),
        "environment": start.environment,
        "streams": [stream for file in files for stream in _streams(file, newest)],
        "events": list(_events(current)),
        "alerts": [],
    }


def _known(run: Fields, column: RunColumn) -> list[Any]:
    return [value for value in _values(run, column) if value is not None]


def _sort_key(run: Fields, column: RunColumn) -> tuple[int, Any]:
    """Return the type and the value, as a server orders them, and tags as one."""
    known = _known(run, column)
    if column == RunColumn("run", ("tags",)) or not known:
        return 4, known
    value = known[0]
    if isinstance(value, bool | int | float):
        return int(not isinstance(value, bool)), value
    return (2, value) if isinstance(value, str) else (3, json.dumps(value))


def _chosen(run: Fields, columns: Mapping[str, RunColumn]) -> Fields:
    tags = RunColumn("run", ("tags",))
    return {
        name: run["tags"] if column == tags else next(iter(_values(run, column)), None)
        for name, column in columns.items()
    }


def _values(run: Fields, column: RunColumn) -> list[Any]:
    """Return the values of a filter's column."""
    if column.source == "config":
        return config_values(run["config"], column.path)
    if column.source == "scalar":
        scalars = [item for item in run["streams"] if item["kind"] == SCALARS_STREAM]
        newest = [item["latest"] for item in scalars if item["is_current"]]
        return [value for latest in newest for value in config_values(latest, column.path)]
    name = column.path[0]
    return list(run[name]) if RUN_COLUMNS[name] == "tags" else [run.get(name)]


def _messages(files: list[Upload], kind: str, message: type[Message]) -> list[Message]:
    """Return the messages of a kind in run files, oldest first."""
    return [
        decode(body, message)
        for file in files
        for frame_kind, body in read_frames(file.path)
        if frame_kind == kind
    ]


def _batches(files: list[Upload]) -> list[Batch]:
    return _messages(files, "batch", Batch)


def _packed(chunk: Chunk) -> bytes:
    if chunk.packed is not None:
        return chunk.packed
    kinds = scalar_kind_of if chunk.stream == SCALARS_STREAM else kind_of
    return pack(chunk.columns or {}, kind_of=kinds)


def _streams(file: Upload, newest: int) -> Iterator[Fields]:
    (start,) = _messages([file], "start", RunStart)
    devices = {device.id: device for device in start.devices}
    chunks: dict[str, list[bytes]] = {}
    for batch in _batches([file]):
        for chunk in batch.chunks:
            chunks.setdefault(chunk.stream, []).append(_packed(chunk))
    for name, packed in chunks.items():
        device, headers = devices.get(name), [read_header(item) for item in packed]
        yield {
            "rank": file.rank,
            "attempt": file.attempt,
            "is_current": file.attempt == newest,
            "device": name,
            "kind": device.kind if device else name,
            "name": device.name if device else name,
            "limit_bytes": device.limit_bytes if device else None,
            "samples": sum(header.rows for header in headers),
            "first_step": headers[0].first_step,
            "last_step": headers[-1].last_step,
            "latest": _latest(packed),
        }


def _latest(chunks: list[bytes]) -> dict[str, Value]:
    """Return the newest value of each column of the newest chunks."""
    latest: dict[str, Value] = {}
    # the newest chunk may be a draft of a few rows
    for chunk in chunks[-2:]:
        for name, values in unpack(chunk).items():
            newest = next((value for value in reversed(values) if value is not None), None)
            latest[name] = newest if newest is not None else latest.get(name)
    return latest


def _events(files: list[Upload]) -> Iterator[Fields]:
    for file in files:
        for batch in reversed(_batches([file])):
            for event in reversed(batch.events):
                yield {
                    "kind": event.kind,
                    "rank": file.rank,
                    "step": event.step,
                    "at": event.time_s,
                    "data": event.data,
                }


def _console(run_id: str, files: list[Upload], rank: int | None) -> Fields:
    """Return the console of a rank in the newest launch: by default one that died, or the first."""
    newest = max(file.attempt or 0 for file in files)
    consoles: dict[int, list[Fields]] = {}
    dead: list[int] = []
    for file in files:
        lines = newest_lines(batch.console for batch in _batches([file]))
        if file.attempt == newest and lines:
            consoles[file.rank or 0] = [_console_line(line) for line in lines]
            if any(end.status in ("failed", "oom") for end in _messages([file], "finish", Finish)):
                dead.append(file.rank or 0)
    if rank is None:
        rank = min(dead or consoles, default=0)
    console = consoles.get(rank, [])
    return {"run_id": run_id, "rank": rank, "ranks": sorted(consoles), "lines": console}


def _console_line(line: ConsoleLine) -> Fields:
    return {
        "number": line.number,
        "text": line.text,
        "stream": line.stream,
        "step": line.step,
        "at": line.time_s,
    }


def _suspects(files: list[Upload]) -> Iterator[Mapping[str, Any]]:
    """Yield the suspects of each rank's newest snapshot of a method, most certain first."""
    newest: dict[tuple[int, str, str], SnapshotMessage] = {}
    for snapshot in _messages(files, "snapshot", SnapshotMessage):
        newest[snapshot.rank, snapshot.device, snapshot.method] = snapshot
    by_line: dict[tuple[str, int, str], Fields] = {}
    for snapshot in newest.values():
        for suspect in snapshot.suspects:
            item = {**_SUSPECT, **to_builtins(suspect), "step": snapshot.step, "ranks": []}
            known = by_line.setdefault((suspect.file, suspect.line, suspect.kind), item)
            known["ranks"].append(snapshot.rank)
    yield from sorted(by_line.values(), key=lambda item: -item.get("confidence", 0.0))
