"""What agents and estimators have told of runs beside their samples, for the streams' forecasters.

Created from turn to turn: each turn reads only what was told since, of all runs with news at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from memagent.forecast import Hints
from memagent_server.store.key_lists import texts
from memagent_server.store.models import Event, Prediction
from memagent_server.store.pending_samples import StreamHead

_KINDS = ("hints", "preflight")


@dataclass
class RunHints:
    """Of one run. `events` and `predictions` are the ids of the last that were read: a run's own only grow, for its row is locked."""

    events: int = 0
    predictions: int = 0
    _hints: dict[tuple[int, int], Hints] = field(default_factory=dict)
    _peaks: dict[tuple[int, str], dict[str, int]] = field(default_factory=dict)

    def hear(self, rank: int, attempt: int, data: Mapping[str, Any]) -> None:
        """A rank's script, or a preflight, has said something."""
        self._hints[rank, attempt] = self._hints.get((rank, attempt), Hints()).merged_with(data)

    def predict(self, rank: int, device: str, method: str, peak_allocated_bytes: int) -> None:
        """An estimator has; a traced answer counts before a formula's, whenever it comes."""
        known = self._peaks.setdefault((rank, device), {})
        known["traced" if method == "trace" else "other"] = peak_allocated_bytes

    def hints(self, stream: StreamHead, total_steps: int | None) -> Hints:
        """All that is known by now of a stream's rank and launch."""
        hints = self._hints.get((stream.rank, stream.attempt), Hints())
        if hints.total_steps is None:
            hints = replace(hints, total_steps=total_steps)
        peaks = self._peaks.get((stream.rank, stream.device))
        if peaks is None:
            return hints
        return hints.merged_with(
            {"predicted_peak_bytes": {stream.device: peaks.get("traced", peaks.get("other"))}}
        )


def listen(session: Session, told: Mapping[str, RunHints]) -> None:
    """Read what was told of these runs since."""
    since = texts(session, ((run_id, known.events) for run_id, known in told.items()))
    new = select(
        Event.run_id, Event.id, Event.kind, Event.rank, Event.attempt, Event.data
    ).select_from(since)
    new = new.join(Event, (Event.run_id == since.c.first) & (Event.id > since.c.second)).order_by(
        Event.id
    )
    for run_id, event_id, kind, rank, attempt, data in session.execute(new):
        told[run_id].events = event_id
        if kind in _KINDS:
            told[run_id].hear(rank, attempt, data)
    since = texts(session, ((run_id, known.predictions) for run_id, known in told.items()))
    made = select(
        Prediction.run_id, Prediction.id, Prediction.rank, Prediction.device, Prediction.method, Prediction.peak_allocated_bytes
    ).select_from(since)  # fmt: skip
    made = made.join(
        Prediction, (Prediction.run_id == since.c.first) & (Prediction.id > since.c.second)
    )
    for run_id, prediction_id, rank, device, method, peak in session.execute(
        made.order_by(Prediction.id)
    ):
        told[run_id].predictions = prediction_id
        told[run_id].predict(rank, device, method, peak)


def secondary_hosts(streams: Iterable[StreamHead]) -> set[int]:
    """Ids of streams that are the host of a rank that trains on GPUs."""
    hosts: dict[int, tuple[str, int, int]] = {}
    trains = set()
    for stream in streams:
        rank = (stream.run_id, stream.rank, stream.attempt)
        if stream.kind == "host":
            hosts[stream.id] = rank
        elif stream.kind != "scalars":
            trains.add(rank)
    return {stream_id for stream_id, rank in hosts.items() if rank in trains}
