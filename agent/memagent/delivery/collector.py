"""The thread that turns rows into batches on a timer, shows them to the local forecaster, and hands them to the sender."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from memagent.delivery.buffer import Drops, Row, SampleBuffer, to_columns
from memagent.delivery.parcel import parcel
from memagent.delivery.sender import Sender
from memagent.guard import Guard
from memagent.wire.columns import Value, pack
from memagent.wire.fields import SCALARS_STREAM, kind_of, scalar_kind_of
from memagent.wire.messages import Batch, Chunk, Event

TICK_S = 0.25
"""How often buffers are drained: a killed process loses at most this much of what goes to a file."""
BATCH_EVERY_S = 1.0
BATCH_ROWS = 500
HEARTBEAT_S = 15.0
"""An empty batch is sent after this much silence, so that the server can tell a long evaluation from a dead process."""
REFRESH_S = 1.0
HELD_ROWS = 20_000
"""Rows kept per stream while the sender has no room."""

Columns = dict[str, list[Value]]


class Collector:
    """Drains `buffers`. `observe(stream, columns)` sees all rows soon after they were taken; `refresh` is called once a second."""

    def __init__(
        self,
        run_id: str,
        rank: int,
        attempt: int,
        buffers: Sequence[SampleBuffer],
        sender: Sender,
        drops: Drops,
        guard: Guard,
        *,
        observe: Callable[[str, Columns], None],
        refresh: Callable[[], None],
    ) -> None:
        self._run_id, self._rank, self._attempt = run_id, rank, attempt
        self._buffers, self._sender, self._drops, self._guard = buffers, sender, drops, guard
        self._observe, self._refresh = observe, refresh
        self._held: list[list[tuple[Row, dict[str, Value] | None]]] = [[] for _ in buffers]
        self._events: list[Event] = []
        self._seq = 0
        self._sent_at = self._refreshed_at = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memagent-collector", daemon=True)
        self._thread.start()

    def add_event(self, event: Event) -> None:
        self._events.append(event)

    def close(self) -> None:
        """Take what is in the buffers, make the last batch of it, and stop."""
        self._stop.set()
        self._thread.join(5.0)
        with self._guard.at("collector"):
            self._drain()
            self._send()

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            with self._guard.at("collector"):
                self._tick(time.monotonic())

    def _tick(self, now: float) -> None:
        if now - self._refreshed_at >= REFRESH_S:
            self._refreshed_at = now
            with self._guard.at("probe refresh"):
                self._refresh()
        self._drain()
        waiting = max((len(rows) for rows in self._held), default=0)
        silence = now - self._sent_at
        due = (
            waiting >= BATCH_ROWS or silence >= HEARTBEAT_S or ((waiting or self._events) and silence >= BATCH_EVERY_S)
        )
        if due and self._sender.has_room():
            self._send()

    def _drain(self) -> None:
        for buffer, held in zip(self._buffers, self._held, strict=True):
            rows = buffer.drain()
            if not rows:
                continue
            with self._guard.at("local forecast"):
                self._observe(buffer.stream, to_columns(buffer.columns, rows))
            room = HELD_ROWS - len(held)
            held.extend(rows[:room])
            if len(rows) > room:
                self._drops["queue_full"] += len(rows) - room

    def _send(self) -> None:
        """One batch of all that is held; the sequence number is used up only now, so dropping leaves no gap."""
        held, self._held = self._held, [[] for _ in self._buffers]
        events, self._events = self._events, []
        chunks = [
            chunk
            for buffer, rows in zip(self._buffers, held, strict=True)
            if rows and (chunk := self._pack(buffer, rows))
        ]
        batch = Batch(
            rank=self._rank,
            attempt=self._attempt,
            seq=self._seq,
            chunks=chunks,
            events=events,
            dropped_samples=dict(self._drops),
        )
        self._sender.put(parcel(self._run_id, batch, samples=sum(map(len, held))))
        self._seq += 1
        self._sent_at = time.monotonic()

    def _pack(self, buffer: SampleBuffer, rows: list[tuple[Row, dict[str, Value] | None]]) -> Chunk | None:
        kind = scalar_kind_of if buffer.stream == SCALARS_STREAM else kind_of
        with self._guard.at("packing samples"):
            return Chunk(stream=buffer.stream, packed=pack(to_columns(buffer.columns, rows), kind_of=kind))
        self._drops["internal_error"] += len(rows)
        return None
