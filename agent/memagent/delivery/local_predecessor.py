"""The predecessor of a run without a server: the newest file of the same program in its folder.

A background thread searches the newest MAX_FILES files up to MAX_FILE_BYTES. It reads the first
frame of each, and one of the same program to its end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from memagent.delivery.run_file import SUFFIX, read_frames
from memagent.errors import WireError
from memagent.forecast.predecessor import MIN_STEPS, Curve, Predecessor, RunEnd
from memagent.wire.codec import decode
from memagent.wire.columns import unpack
from memagent.wire.messages import Batch, Finish, RunStart
from memagent.wire.program import program_of

MAX_FILES = 64
MAX_FILE_BYTES = 64 * 2**20
"""About a million samples: a longer run's file would take seconds."""
_SIZES = ("allocated_bytes", "device_used_bytes", "peak_allocated_bytes")
_COLUMNS = ("step", *_SIZES)
_Row = tuple[float | None, ...]


def find_local_predecessor(folder: Path, start: RunStart) -> Predecessor | None:
    """Return the predecessor of the run that starts, None if there is none."""
    program = program_of(start)
    if program is None:
        return None
    for file in _newest(folder):
        with contextlib.suppress(OSError, WireError, StopIteration):
            before = decode(next(read_frames(file))[1], RunStart)
            # ranks differ in what they hold
            is_alike = (before.project, before.rank) == (start.project, start.rank)
            if before.run_id == start.run_id or not is_alike or program_of(before) != program:
                continue
            predecessor = _read(file, before, start)
            if predecessor is not None:
                return predecessor
    return None


def _newest(folder: Path) -> list[Path]:
    """Return the files that were written last, the newest first."""
    files = []
    for file in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):
            status = file.stat()
            if status.st_size <= MAX_FILE_BYTES:
                files.append((status.st_mtime, file))
    return [file for _, file in sorted(files, reverse=True)[:MAX_FILES]]


def _read(file: Path, before: RunStart, start: RunStart) -> Predecessor | None:
    """Return the recorded run, None if it runs, fell silent, or shows too little."""
    device = before.devices[0] if before.devices else None
    if device is None or device.limit_bytes is None:
        return None
    # a file without a finish is of a process that runs or was killed
    curve, status, last_step = Curve(), "running", 0
    for kind, body in read_frames(file):
        if kind == "finish":
            status = decode(body, Finish).status
        elif kind == "batch":
            for step, *sizes in _rows(decode(body, Batch), device.id):
                allocated, used, peak = sizes
                floor = allocated if allocated is not None else used
                if step is not None and floor is not None:
                    last_step = int(step)
                    curve.add(last_step, int(floor), int(peak if peak is not None else floor))
    if status not in get_args(RunEnd) or last_step < MIN_STEPS:
        return None
    commit = start.environment.get("git_commit")
    steps, floors, peaks = zip(*curve.points(), strict=True)
    return Predecessor(
        run_id=before.run_id,
        status=status,  # type: ignore[arg-type]  # checked above
        last_step=last_step,
        limit_bytes=device.limit_bytes,
        steps=steps,
        floor_bytes=floors,
        peak_bytes=peaks,
        is_same_commit=commit == before.environment.get("git_commit") if commit else None,
    )


def _rows(batch: Batch, device: str) -> Iterator[_Row]:
    """Yield (step, allocated, used of the device, peak) of each sample of a device."""
    for chunk in batch.chunks:
        if chunk.stream == device:
            columns = chunk.columns or unpack(chunk.packed or b"", only=_COLUMNS)
            absent = [None] * len(columns["step"])
            yield from zip(*(columns.get(name) or absent for name in _COLUMNS), strict=True)
