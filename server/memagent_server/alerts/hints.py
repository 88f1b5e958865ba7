"""What the agent has told of a rank beside its samples, for its streams' forecasters."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from memagent.forecast import Hints
from memagent_server.store.models import Event, Run, Stream
from memagent_server.store.predictions import prediction_for

_KINDS = ("hints", "preflight")


def hints_for(session: Session, stream: Stream) -> Hints:
    """All that is known by now of the stream's rank and launch; cheap enough to ask before each batch."""
    hints = Hints(total_steps=session.get_one(Run, stream.run_id).total_steps)
    told = select(Event.data).where(Event.run_id == stream.run_id, Event.kind.in_(_KINDS))
    told = told.where(Event.rank == stream.rank, Event.attempt == stream.attempt)
    for data in session.scalars(told.order_by(Event.id)):
        hints = hints.told(data)
    predicted = prediction_for(session, stream.run_id, stream)
    if predicted is None:
        return hints
    return hints.told({"predicted_peak_bytes": {stream.device: predicted.peak_allocated_bytes}})


def is_beside(session: Session, stream: Stream) -> bool:
    """Whether it is the host of a rank that trains on GPUs."""
    if stream.kind != "host":
        return False
    gpus = select(Stream.id).where(Stream.run_id == stream.run_id, Stream.rank == stream.rank)
    gpus = gpus.where(Stream.attempt == stream.attempt, Stream.kind.not_in(("host", "scalars")))
    return session.scalar(gpus.limit(1)) is not None
