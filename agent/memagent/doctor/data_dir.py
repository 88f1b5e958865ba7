"""The folder of run files, and the files waiting in it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from memagent.delivery.local_runs import is_in_use
from memagent.delivery.run_file import try_lock
from memagent.delivery.upload import Upload, find_files
from memagent.doctor.check import Environment, Finding, ok, problem, warning
from memagent.units import GIB, MIB, format_bytes

_LOW_BYTES = GIB
_FULL_BYTES = 64 * MIB


def check(environment: Environment) -> Iterator[Finding]:
    folder = environment.settings.directory
    if (error := _write_error(folder)) is not None:
        yield problem(f"{folder} is not writable: {error}", "set MEMAGENT_DIR to a writable folder")
    else:
        yield judge_space(folder, shutil.disk_usage(_existing(folder)).free)
    if folder.is_dir():
        yield from _waiting(
            find_files([folder]), has_server=environment.settings.server is not None
        )


def judge_space(folder: Path, free_bytes: int) -> Finding:
    text = f"run files go to {folder}, {format_bytes(free_bytes)} free"
    if free_bytes < _FULL_BYTES:
        return problem(text, "free some space, or set MEMAGENT_DIR to another disk")
    if free_bytes < _LOW_BYTES:
        return warning(text, "free some space before a long run without a server")
    return ok(text)


def _write_error(folder: Path) -> str | None:
    """Try to write and lock a file. A missing folder is not created: check its parent's rights."""
    existing = _existing(folder)
    if not existing.is_dir():
        return f"{existing} is not a folder"
    if existing != folder:
        return (
            None
            if os.access(existing, os.W_OK | os.X_OK)
            else f"this user may not write to {existing}"
        )
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"memagent")
            file.flush()
            try_lock(file.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return None


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def _waiting(files: list[Upload], *, has_server: bool) -> Iterator[Finding]:
    unreadable = [file for file in files if file.outcome == "unreadable"]
    rest = [file for file in files if file.outcome != "unreadable" and not is_in_use(file.path)]
    if unreadable:
        yield warning(
            f"{len(unreadable)} run files cannot be read, for example {unreadable[0].path}",
            "move them to another folder",
        )
    if rest and has_server:
        yield warning(f"{len(rest)} run files are waiting to be uploaded", "memagent sync")
    elif rest:
        yield ok(
            f"{len(rest)} run files here: `memagent runs` lists them, `memagent sync` uploads them"
        )
