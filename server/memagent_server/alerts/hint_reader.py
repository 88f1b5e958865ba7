"""Hints of scripts, preflights and estimators about running runs, for the streams' forecasters.

They are cached between turns: a turn reads only the new ones, of all runs at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from memagent.forecast import Hints
from memagent_server.schemas.predictions import precedence
from memagent_server.store.engine import Session
from memagent_server.store.evaluation import StreamHead
from memagent_server.store.events import events_after
from memagent_server.store.predictions import predictions_after

_EVENT_KINDS = ("hints", "preflight")


@dataclass
class RunHints:
    """Hints of one run, and the ids of the last event and prediction that were read.

    The ids of a run's rows only grow, because its row is locked while they are written.
    """

    last_event: int = 0
    last_prediction: int = 0
    _hints: dict[tuple[int, int], Hints] = field(default_factory=dict)
    _peaks: dict[tuple[int, str], dict[str, int]] = field(default_factory=dict)

    def add_event(self, rank: int, attempt: int, data: Mapping[str, Any]) -> None:
        """Merge the hints of a rank's script or preflight."""
        self._hints[rank, attempt] = self._hints.get((rank, attempt), Hints()).merged_with(data)

    def add_prediction(
        self, rank: int, device: str, method: str, peak_allocated_bytes: int
    ) -> None:
        """Note a predicted peak; that of the most exact method counts, in any order."""
        # all are kept, since they arrive in any order
        self._peaks.setdefault((rank, device), {})[method] = peak_allocated_bytes

    def hints(self, stream: StreamHead, total_steps: int | None) -> Hints:
        """Return the hints for a stream's rank and launch."""
        hints = self._hints.get((stream.rank, stream.attempt), Hints())
        if hints.total_steps is None:
            hints = replace(hints, total_steps=total_steps)
        peaks = self._peaks.get((stream.rank, stream.device))
        if peaks is None:
            return hints
        peak = peaks[min(peaks, key=precedence)]
        return hints.merged_with({"predicted_peak_bytes": {stream.device: peak}})


def read_new_hints(session: Session, runs: Mapping[str, RunHints]) -> None:
    """Read what has been added for these runs since the last call."""
    last_events = {run_id: hints.last_event for run_id, hints in runs.items()}
    for run_id, event_id, kind, rank, attempt, data in events_after(session, last_events):
        runs[run_id].last_event = event_id
        if kind in _EVENT_KINDS:
            runs[run_id].add_event(rank, attempt, data)
    last_predictions = {run_id: hints.last_prediction for run_id, hints in runs.items()}
    for row in predictions_after(session, last_predictions):
        run_id, prediction_id, rank, device, method, peak = row
        runs[run_id].last_prediction = prediction_id
        runs[run_id].add_prediction(rank, device, method, peak)


def secondary_hosts(streams: Iterable[StreamHead]) -> set[int]:
    """Return the ids of host streams whose ranks train on GPUs."""
    hosts: dict[int, tuple[str, int, int]] = {}
    ranks_with_gpu = set()
    for stream in streams:
        rank = (stream.run_id, stream.rank, stream.attempt)
        if stream.kind == "host":
            hosts[stream.id] = rank
        elif stream.kind != "scalars":
            ranks_with_gpu.add(rank)
    return {stream_id for stream_id, rank in hosts.items() if rank in ranks_with_gpu}
