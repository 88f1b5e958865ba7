"""An imported run as messages of an agent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from memagent.delivery.envelope import Envelope, seal
from memagent.delivery.partial_batch import pack_chunk, row_count
from memagent.importer.scalar_table import PointColumns
from memagent.importer.source_run import SourceRun
from memagent.importer.watermark import Watermark
from memagent.record.config import plain_config
from memagent.record.masking import mask_text
from memagent.settings import MAX_LABEL_LENGTH
from memagent.wire.fields import SCALARS_STREAM
from memagent.wire.messages import Batch, Finish, RunStart

TAG_LIMIT = 100
_ID_DIGITS = 12
_ERROR_CHARACTERS = 20_000


def run_id_of(run: SourceRun) -> str:
    """Return the id of a run: the same for each import of it, from wherever its files lie."""
    digest = hashlib.sha256(run.key.encode(errors="replace")).hexdigest()
    return f"{run.source}-{digest[:_ID_DIGITS]}"


def attempt_of(run: SourceRun) -> int:
    """Return the attempt of a run's first import: the newest time in milliseconds.

    So an import that doesn't know of an earlier one repeats it, or is a later launch.
    """
    return int(run.last_time_s * 1000)


def start_of(run: SourceRun, project: str, attempt: int) -> Envelope:
    """Return the message that registers a run."""
    run_id = run_id_of(run)
    tags = [tag for text in run.tags if (tag := _label(text))]
    source = {"imported_from": run.source, "import_path": str(run.place)}
    start = RunStart(
        run_id=run_id,
        project=_label(project) or "default",
        name=_label(run.name),
        user=_label(run.user),
        host=_label(run.host),
        attempt=attempt,
        started_at=run.started_at,
        config=plain_config(run.config),
        tags=list(dict.fromkeys(tags))[:TAG_LIMIT],
        environment=plain_config({**run.environment, **source}),
        devices=run.devices.devices(),
    )
    return seal(run_id, start)


def batches_of(run: SourceRun, attempt: int, known: Watermark | None) -> Iterator[Envelope]:
    """Yield the batches of what isn't known."""
    run_id = run_id_of(run)
    for seq, (stream, columns) in enumerate(_blocks(run, known), known.next_seq if known else 0):
        batch = Batch(attempt=attempt, seq=seq, chunks=[pack_chunk(stream, columns)])
        yield seal(run_id, batch, row_count(columns))


def finish_of(run: SourceRun, attempt: int) -> Envelope | None:
    """Return the message of a run's end, None if the source has none."""
    if run.status is None:
        return None
    error = None if run.error is None else mask_text(run.error)[:_ERROR_CHARACTERS]
    finish = Finish(
        status=run.status,
        attempt=attempt,
        step=run.scalars.last_step,
        finished_at=run.finished_at or run.last_time_s,
        error=error,
    )
    return seal(run_id_of(run), finish)


def watermark_of(run: SourceRun, attempt: int, next_seq: int) -> Watermark:
    """Return the watermark after an import of all of a run."""
    return Watermark(
        attempt=attempt,
        next_seq=next_seq,
        status=run.status,
        scalars=run.scalars.extents(),
        devices=run.devices.extents(),
    )


def _blocks(run: SourceRun, known: Watermark | None) -> Iterator[tuple[str, PointColumns]]:
    for columns in run.scalars.blocks(known.scalars if known else None):
        yield SCALARS_STREAM, columns
    yield from run.devices.blocks(run.scalars.clock(), known.devices if known else None)


def _label(text: str | None) -> str | None:
    """Return a text as a label: masked, in one line, not too long; None if nothing is left."""
    return " ".join(mask_text(text or "").split())[:MAX_LABEL_LENGTH] or None
