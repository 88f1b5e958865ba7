"""What killed a run, from what the store knows: the last words, the newest readings, the prediction, and who is blamed for growth."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from memagent.diagnostics.console import display_roots
from memagent.oom.report import OomReport, oom_report
from memagent_server.store.engine import Session
from memagent_server.store.events import oom_events
from memagent_server.store.models import Event, Run, Stream
from memagent_server.store.predictions import prediction_for
from memagent_server.store.snapshots import suspects_of


def autopsy(session: Session, run: Run, stream: Stream | None) -> OomReport | None:
    """The report of the run's death, as `stream`'s rank and device had it; None for a run that did not run out of memory, or could
    not say so."""
    died = _last_words(session, run, stream) if run.status == "oom" else None
    if died is None:
        return None
    prediction = prediction_for(session, run.id, stream)
    return oom_report(
        died.data,
        died.step,
        device=stream.device if stream else None,
        reading=_allocator_reading(stream) if stream else None,
        predicted_peak_bytes=prediction.peak_allocated_bytes if prediction else None,
        suspects=[asdict(suspect) for suspect in suspects_of(session, run.id)],
        advice=prediction.advice if prediction else (),
        roots=display_roots(run.environment),
    )


def _last_words(session: Session, run: Run, stream: Stream | None) -> Event | None:
    """The newest `oom` event of the newest launch; the stream's own rank is asked before the others."""
    found = oom_events(session, run.id)[::-1]
    own = [event for event in found if stream is not None and event.rank == stream.rank]
    return next(iter(own or found), None)


def _allocator_reading(stream: Stream) -> dict[str, Any]:
    """A stream's newest sample. A host has no caching allocator: what reads `reserved` there is mapped memory, and no cache."""
    return stream.latest if stream.kind != "host" else {**stream.latest, "reserved_bytes": None}
