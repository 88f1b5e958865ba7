"""What agents and estimators have told of runs beside their samples, for the streams' forecasters.

Created from turn to turn: each turn reads only what was told since, of all runs with news at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from memagent.forecast import Hints
from memagent_server.store.engine import Session
from memagent_server.store.evaluation import StreamHead
from memagent_server.store.events import events_after
from memagent_server.store.predictions import predictions_after

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
    last_events = {run_id: known.events for run_id, known in told.items()}
    for run_id, event_id, kind, rank, attempt, data in events_after(session, last_events):
        told[run_id].events = event_id
        if kind in _KINDS:
            told[run_id].hear(rank, attempt, data)
    last_predictions = {run_id: known.predictions for run_id, known in told.items()}
    for run_id, prediction_id, rank, device, method, peak in predictions_after(
        session, last_predictions
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
