"""Runs that were recorded without a server, summed up from their files with the names that the server uses."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from memagent.delivery.run_file import read_frames, try_lock
from memagent.delivery.upload import Upload, find_files
from memagent.errors import WireError
from memagent.wire.codec import decode
from memagent.wire.columns import unpack
from memagent.wire.fields import SCALARS_STREAM
from memagent.wire.messages import Batch, Chunk, Finish, RunStart

_WORST_FIRST = ("oom", "failed", "lost_contact", "running", "completed")
_PEAKS = ("peak_allocated_bytes", "allocated_bytes")


def recorded_runs(folder: Path) -> list[dict[str, Any]]:
    """One entry a run, the newest first: the newest launch, all its ranks. Files that cannot be read are left out."""
    files = (
        [file for file in find_files([folder]) if file.outcome != "unreadable"]
        if folder.is_dir()
        else []
    )
    runs = [_run(list(ranks)) for _, ranks in groupby(files, key=lambda file: file.run_id)]
    return sorted(
        (run for run in runs if run), key=lambda run: run["started_at"] or 0.0, reverse=True
    )


def is_in_use(path: Path) -> bool:
    """Whether a process still writes to a run file, or uploads it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not try_lock(fd)
    except OSError:  # a filesystem that knows no locks
        return False
    finally:
        os.close(fd)


def _run(files: list[Upload]) -> dict[str, Any]:
    newest = max(file.attempt or 0 for file in files)
    ranks = [found for file in files if file.attempt == newest and (found := _rank(file.path))]
    if not ranks:
        return {}
    nearest = max(
        ranks,
        key=lambda rank: rank["peak_bytes"] / rank["limit_bytes"] if rank["limit_bytes"] else 0.0,
    )
    return {
        **ranks[0],
        **{name: nearest[name] for name in ("device", "peak_bytes", "limit_bytes")},
        "status": next(
            status for status in _WORST_FIRST if any(rank["status"] == status for rank in ranks)
        ),
        "step": max(rank["step"] for rank in ranks),
    }


def _rank(path: Path) -> dict[str, Any] | None:
    try:
        frames = list(read_frames(path))
        start = decode(frames[0][1], RunStart)
        batches = [decode(body, Batch) for kind, body in frames if kind == "batch"]
        ends = [decode(body, Finish) for kind, body in frames if kind == "finish"]
        step, peaks, limits = _sizes(chunk for batch in batches for chunk in batch.chunks)
    except (OSError, WireError, IndexError):
        return None
    limits = {
        device.id: device.limit_bytes for device in start.devices if device.limit_bytes
    } | limits
    device = start.devices[0].id if start.devices else next(iter(peaks), None)
    return {
        "id": start.run_id,
        "project": start.project,
        "name": start.name,
        "user": start.user,
        "host": start.host,
        "status": ends[-1].status if ends else "running" if is_in_use(path) else "lost_contact",
        "started_at": start.started_at,
        "step": step,
        "total_steps": start.total_steps,
        "device": device,
        "peak_bytes": peaks.get(device or "", 0),
        "limit_bytes": limits.get(device or ""),
        "forecast": None,
        "url": None,
        "path": str(path),
    }


def _sizes(chunks: Iterable[Chunk]) -> tuple[int, dict[str, int], dict[str, int]]:
    """The last step; the peak and the newest limit of each stream."""
    step, peaks, limits = 0, dict[str, int](), dict[str, int]()
    for chunk in chunks:
        if chunk.stream == SCALARS_STREAM:
            continue
        wanted = ("step", "limit_bytes", *_PEAKS)
        columns = (
            unpack(chunk.packed, only=wanted) if chunk.packed is not None else chunk.columns or {}
        )
        step = max([step, *(int(value) for value in columns.get("step", ()) if value is not None)])
        found = [
            int(value) for name in _PEAKS for value in columns.get(name, ()) if value is not None
        ]
        peaks[chunk.stream] = max([peaks.get(chunk.stream, 0), *found])
        if known := [int(value) for value in columns.get("limit_bytes", ()) if value]:
            limits[chunk.stream] = known[-1]
    return step, peaks, limits
