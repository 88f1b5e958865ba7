"""Folder of run files that imports write, and of the watermarks that say what they have written.

1. A run that has grown gets more batches of its attempt. They join those in its run file. An
   upload may have removed it: then the new file has only these.
2. A run that was rewritten, or that the server has another part of, becomes a new attempt with all
   of it: nothing is lost, and the older attempt stays.
3. A run file is replaced whole, and the watermark follows. After a kill between the two, the next
   import replaces the batches that no watermark covers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from memagent.delivery.envelope import Envelope
from memagent.delivery.run_file import SUFFIX, RunFile, read_frames, try_lock
from memagent.errors import MemagentError, WireError
from memagent.importer import run_record
from memagent.importer.source_run import SourceRun
from memagent.importer.watermark import FOLDER, Watermark, read_watermark, write_watermark
from memagent.wire.codec import decode
from memagent.wire.messages import Batch

REWRITTEN = "was changed, not only continued, since it was imported: a new launch has all of it"
OTHER_PART = "is on the server by another import: a new launch has all of it"

NextSeq = Callable[[Envelope], int | None]
"""Returns the first batch that a server lacks after a start; None if it can't be asked."""


@dataclass(frozen=True)
class ImportPlan:
    """The part of a run that isn't `known`, and the attempt and the file that it belongs to."""

    path: Path
    attempt: int
    known: Watermark | None
    note: str | None = None


class RunFolder:
    """Plans and writes the run files of imports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def plan(self, run: SourceRun, project: str, next_seq: NextSeq | None) -> ImportPlan:
        """Return what is to be imported. `next_seq` asks a server for what an upload left there."""
        known = read_watermark(self._watermark_path(run))
        if known is None:
            return self._plan(run, run_record.attempt_of(run), None)
        if not known.is_before(run):
            return self._plan(run, _later_attempt(run, known), None, REWRITTEN)
        plan = self._plan(run, known.attempt, known)
        if plan.path.exists() or next_seq is None:
            return plan
        stored = next_seq(run_record.start_of(run, project, known.attempt))
        # a server that is away gets the new part: the one before left this machine
        if stored in (None, known.next_seq):
            return plan
        # another server, or one whose run was deleted
        if stored == 0:
            return self._plan(run, known.attempt, None)
        return self._plan(run, _later_attempt(run, known), None, OTHER_PART)

    def write(self, run: SourceRun, project: str, plan: ImportPlan) -> bool:
        """Write what is new; return False if nothing is.

        Raises MemagentError if it can't be written.
        """
        batches = list(run_record.batches_of(run, plan.attempt, plan.known))
        if plan.known is not None and not batches and plan.known.status == run.status:
            return False
        first_seq = plan.known.next_seq if plan.known else 0
        start = run_record.start_of(run, project, plan.attempt)
        finish = run_record.finish_of(run, plan.attempt)
        ends = [finish] if finish is not None else []
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with _locked(plan.path) as has_file:
                older = _batches_before(plan.path, first_seq) if has_file else ()
                _replace(plan.path, start, [*older, *batches, *ends])
            mark = run_record.watermark_of(run, plan.attempt, first_seq + len(batches))
            write_watermark(self._watermark_path(run), mark)
        except (OSError, WireError) as error:
            reason = getattr(error, "strerror", None) or error
            raise MemagentError(f"{plan.path} cannot be written: {reason}") from error
        return True

    def _plan(
        self, run: SourceRun, attempt: int, known: Watermark | None, note: str | None = None
    ) -> ImportPlan:
        name = f"{run_record.run_id_of(run)}-0-{attempt}{SUFFIX}"
        return ImportPlan(self._folder / name, attempt, known, note)

    def _watermark_path(self, run: SourceRun) -> Path:
        launch = int((run.started_at or 0.0) * 1000)
        return self._folder / FOLDER / f"{run_record.run_id_of(run)}-{launch}.json"


def _later_attempt(run: SourceRun, known: Watermark) -> int:
    return max(run_record.attempt_of(run), known.attempt + 1)


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold the lock of a run file; yield whether there is one.

    Raises MemagentError while it's uploaded.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        if not try_lock(fd):
            raise MemagentError(f"{path} is being uploaded: import again when that has ended")
        yield path.exists()
    finally:
        os.close(fd)


def _batches_before(path: Path, end_seq: int) -> Iterator[Envelope]:
    for kind, body in read_frames(path):
        if kind == "batch" and decode(body, Batch).seq < end_seq:
            yield Envelope(kind, "", body)


def _replace(path: Path, start: Envelope, others: Iterable[Envelope]) -> None:
    """Write a run file; a partial one has no name that is read. Raises OSError."""
    partial = path.with_suffix(".part")
    partial.unlink(missing_ok=True)
    file = RunFile(partial, start)
    try:
        for item in others:
            file.append(item)
        partial.rename(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    finally:
        file.close()
