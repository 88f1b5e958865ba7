"""The thread that turns rows into batches on a timer, shows them to the local forecaster, and hands them to the sender.

Rows leave the process twice: at every tick as a draft on the disk, unpacked and cheap, so that a kill costs no more than a tick; and once
a second, or with BATCH_ROWS of them, in the batch that takes the drafts' place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from memagent.delivery.buffer import DroppedSamples, Row, SampleBuffer, to_columns
from memagent.delivery.envelope import parcel
from memagent.delivery.partial_batch import Columns, pack_chunk
from memagent.delivery.sender import Sender
from memagent.diagnostics.error_guard import ErrorGuard
from memagent.wire.codec import encode
from memagent.wire.messages import Batch, Chunk, Event

TICK_S = 0.2
"""How often buffers are drained to the disk: with what the tick itself takes, a killed process loses less than 250 ms."""
BATCH_EVERY_S = 1.0
BATCH_ROWS = 500
HEARTBEAT_S = 15.0
"""An empty batch is sent after this much silence, so that the server can tell a long evaluation from a dead process."""
REFRESH_S = 1.0
HELD_ROWS = 20_000
"""Rows kept per stream while the sender has no room."""
STOP_S = 0.5
"""A thread that does not stop within this hangs in somebody's driver or disk: it is left alone."""


class Collector:
    """Drains `buffers`. `observe(stream, columns)` sees all rows soon after they were taken; `refresh` is called once a second.

    Each on a thread of its own.
    """

    def __init__(
        self,
        run_id: str,
        rank: int,
        attempt: int,
        buffers: Sequence[SampleBuffer],
        sender: Sender,
        drops: DroppedSamples,
        guard: ErrorGuard,
        *,
        observe: Callable[[str, Columns], None],
        refresh: Callable[[], None],
    ) -> None:
        self._run_id, self._rank, self._attempt = run_id, rank, attempt
        self._buffers, self._sender, self._drops, self._guard = buffers, sender, drops, guard
        self._observe, self._refresh = observe, refresh
        self._held: list[list[Row]] = [[] for _ in buffers]
        self._events: list[Event] = []
        self._drafted_events = 0
        self._seq = 0
        self._sent_at = time.monotonic()
        self._stop = threading.Event()
        self._collecting = threading.Thread(
            target=self._collect, name="memagent-collector", daemon=True
        )
        self._refreshing = threading.Thread(
            target=self._refresh_on, name="memagent-refresher", daemon=True
        )
        self._collecting.start()
        self._refreshing.start()

    def emit(self, event: Event) -> None:
        self._events.append(event)

    def close(self) -> None:
        """Take what is in the buffers, make the last batch of it, and stop."""
        self._stop.set()
        until = time.monotonic() + STOP_S
        self._collecting.join(STOP_S)
        self._refreshing.join(max(0.0, until - time.monotonic()))
        if self._collecting.is_alive():
            self._drops["not_delivered_at_exit"] += sum(map(len, self._held)) + sum(
                map(len, self._buffers)
            )
            return
        with self._guard.section("collector"):
            fresh = self._drain()
            self._send()
            self._show(fresh)

    def _collect(self) -> None:
        due_at = time.monotonic() + TICK_S
        while not self._stop.wait(max(0.0, due_at - time.monotonic())):
            now = time.monotonic()
            due_at = max(due_at, now) + TICK_S
            with self._guard.section("collector"):
                self._tick(now)

    def _refresh_on(self) -> None:
        """On a thread of its own: a driver that takes seconds to answer must not keep rows from the disk."""
        while not self._stop.wait(REFRESH_S):
            with self._guard.section("probe refresh"):
                self._refresh()

    def _tick(self, now: float) -> None:
        """What takes time comes after what must not be lost."""
        fresh = self._drain()
        if self._sender.has_room():
            if self._is_due(now):
                self._send()
            else:
                self._draft(fresh)
        self._show(fresh)

    def _is_due(self, now: float) -> bool:
        waiting = max((len(rows) for rows in self._held), default=0)
        silence = now - self._sent_at
        if waiting >= BATCH_ROWS or silence >= HEARTBEAT_S:
            return True
        return silence >= BATCH_EVERY_S and bool(waiting or self._events)

    def _drain(self) -> list[tuple[str, Columns]]:
        """Take what is in the buffers; what is new is returned by stream."""
        fresh = []
        for buffer, held in zip(self._buffers, self._held, strict=True):
            rows = buffer.drain()
            if not rows:
                continue
            fresh.append((buffer.stream, to_columns(buffer.columns, rows)))
            room = HELD_ROWS - len(held)
            held.extend(rows[:room])
            if len(rows) > room:
                self._drops["queue_full"] += len(rows) - room
        return fresh

    def _show(self, fresh: list[tuple[str, Columns]]) -> None:
        for stream, columns in fresh:
            with self._guard.section("local forecast"):
                self._observe(stream, columns)

    def _draft(self, fresh: list[tuple[str, Columns]]) -> None:
        """Keep on the disk what came since the last draft."""
        events = self._events[self._drafted_events :]
        if not fresh and not events:
            return
        self._drafted_events += len(events)
        chunks = [Chunk(stream=stream, columns=columns) for stream, columns in fresh]
        self._sender.draft(encode(self._batch(chunks, events)))

    def _send(self) -> None:
        """One batch of all that is held; the sequence number is used up only now, so dropping leaves no gap."""
        held, self._held = self._held, [[] for _ in self._buffers]
        events = list(self._events)
        del self._events[
            : len(events)
        ]  # not a new list: another thread may be about to add to this one
        self._drafted_events = 0
        chunks = [
            chunk
            for buffer, rows in zip(self._buffers, held, strict=True)
            if rows and (chunk := self._pack(buffer, rows))
        ]
        self._sender.put(
            parcel(self._run_id, self._batch(chunks, events), samples=sum(map(len, held)))
        )
        self._seq += 1
        self._sent_at = time.monotonic()

    def _batch(self, chunks: list[Chunk], events: list[Event]) -> Batch:
        return Batch(
            rank=self._rank,
            attempt=self._attempt,
            seq=self._seq,
            chunks=chunks,
            events=events,
            dropped_samples=dict(self._drops),
        )

    def _pack(self, buffer: SampleBuffer, rows: list[Row]) -> Chunk | None:
        with self._guard.section("packing samples"):
            return pack_chunk(buffer.stream, to_columns(buffer.columns, rows))
        self._drops["internal_error"] += len(rows)
        return None
