"""Runs recorded without a server, summarized from their files in the server's terms."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Any

from memagent.delivery.run_file import read_frames, try_lock
from memagent.delivery.upload import Upload, find_files
from memagent.errors import WireError
from memagent.wire.codec import decode
from memagent.wire.columns import unpack
from memagent.wire.fields import SCALARS_STREAM
from memagent.wire.messages import Batch, Chunk, Finish, RunStart

_WORST_FIRST = ("oom", "failed", "lost_contact", "running", "stopped", "completed")
_PEAKS = ("peak_allocated_bytes", "allocated_bytes")
_DEVICE_PEAKS = ("device_used_bytes",)
"""Columns of a stream without the others, as an imported run has."""


def recorded_runs(folder: Path) -> list[dict[str, Any]]:
    """Return one entry per run, newest first: its newest launch with all ranks.

    Unreadable files are left out.
    """
    files = find_files([folder]) if folder.is_dir() else []
    readable = [file for file in files if file.outcome != "unreadable"]
    runs = [_summarize_run(list(ranks)) for _, ranks in groupby(readable, lambda file: file.run_id)]
    return sorted(filter(None, runs), key=lambda run: run["started_at"] or 0.0, reverse=True)


def is_in_use(path: Path) -> bool:
    """Return True if a process writes a run file or uploads it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # closing the descriptor also releases a lock that this test acquires
        return not try_lock(fd)
    except OSError:  # a filesystem without locks
        return False
    finally:
        os.close(fd)


def _summarize_run(files: list[Upload]) -> dict[str, Any]:
    newest = max(file.attempt or 0 for file in files)
    summaries = (_summarize_rank(file.path) for file in files if file.attempt == newest)
    ranks = list(filter(None, summaries))
    if not ranks:
        return {}
    fullest = max(ranks, key=lambda rank: (rank["peak_bytes"] or 0) / (rank["limit_bytes"] or inf))
    statuses = {rank["status"] for rank in ranks}
    return {
        **ranks[0],
        **{name: fullest[name] for name in ("device", "peak_bytes", "limit_bytes")},
        "status": next(status for status in _WORST_FIRST if status in statuses),
        "step": max(rank["step"] for rank in ranks),
    }


def _summarize_rank(path: Path) -> dict[str, Any] | None:
    try:
        frames = list(read_frames(path))
        start = decode(frames[0][1], RunStart)
        batches = [decode(body, Batch) for kind, body in frames if kind == "batch"]
        finishes = [decode(body, Finish) for kind, body in frames if kind == "finish"]
        step, peaks, limits = _sizes(chunk for batch in batches for chunk in batch.chunks)
    except (OSError, WireError, IndexError):
        return None
    first_limits = {device.id: device.limit_bytes for device in start.devices if device.limit_bytes}
    device = start.devices[0].id if start.devices else next(iter(peaks), None)
    status = "running" if is_in_use(path) else "lost_contact"
    return {
        "id": start.run_id,
        "project": start.project,
        "name": start.name,
        "user": start.user,
        "host": start.host,
        "status": finishes[-1].status if finishes else status,
        "started_at": start.started_at,
        # an imported run may have scalars only
        "step": max([step, *(finish.step for finish in finishes)]),
        "total_steps": start.total_steps,
        "device": device,
        "peak_bytes": peaks.get(device or ""),
        # the limit of a sample is newer than that of the start
        "limit_bytes": {**first_limits, **limits}.get(device or ""),
        "forecast": None,
        "url": None,
        "path": str(path),
    }


def _sizes(chunks: Iterable[Chunk]) -> tuple[int, dict[str, int], dict[str, int]]:
    """Return the last step, and the peak and newest limit of each stream."""
    step, peaks, limits = 0, dict[str, int](), dict[str, int]()
    names = ("step", "limit_bytes", *_PEAKS, *_DEVICE_PEAKS)
    for chunk in chunks:
        if chunk.stream == SCALARS_STREAM:
            continue
        columns = chunk.columns or {}
        if chunk.packed is not None:
            columns = unpack(chunk.packed, only=names)
        values = {
            name: [int(value) for value in columns.get(name, ()) if value is not None]
            for name in names
        }
        step = max([step, *values["step"]])
        sizes = [size for name in _PEAKS for size in values[name]]
        sizes = sizes or [size for name in _DEVICE_PEAKS for size in values[name]]
        peaks[chunk.stream] = max([peaks.get(chunk.stream, 0), *sizes])
        if limit_values := list(filter(None, values["limit_bytes"])):
            limits[chunk.stream] = limit_values[-1]
    return step, peaks, limits
