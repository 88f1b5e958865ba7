"""OOM report of a run from the store: the OOM event, newest readings, prediction and suspects."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from memagent.diagnostics.console import display_roots
from memagent.oom.report import OomReport, oom_report
from memagent_server.store.engine import Session
from memagent_server.store.events import oom_events
from memagent_server.store.models import EventRow, RunRow, StreamRow
from memagent_server.store.predictions import prediction_for
from memagent_server.store.snapshots import suspects_of


def autopsy(session: Session, run: RunRow, stream: StreamRow | None) -> OomReport | None:
    """Return the OOM report of a run for `stream`'s rank and device.

    None if the run didn't run out of memory, or sent no OOM event.
    """
    event = _oom_event(session, run, stream) if run.status == "oom" else None
    if event is None:
        return None
    prediction = prediction_for(session, run.id, stream)
    return oom_report(
        event.data,
        event.step,
        device=stream.device if stream else None,
        reading=_allocator_reading(stream) if stream else None,
        predicted_peak_bytes=prediction.peak_allocated_bytes if prediction else None,
        suspects=[asdict(suspect) for suspect in suspects_of(session, run.id)],
        advice=prediction.advice if prediction else (),
        roots=display_roots(run.environment),
    )


def _oom_event(session: Session, run: RunRow, stream: StreamRow | None) -> EventRow | None:
    """Return the newest `oom` event of the newest launch, preferably of the stream's rank."""
    newest_first = oom_events(session, run.id)[::-1]
    same_rank = [
        event for event in newest_first if stream is not None and event.rank == stream.rank
    ]
    return next(iter(same_rank or newest_first), None)


def _allocator_reading(stream: StreamRow) -> dict[str, Any]:
    """Return a stream's newest sample; a host's `reserved` is mapped memory, not a cache."""
    return stream.latest if stream.kind != "host" else {**stream.latest, "reserved_bytes": None}
