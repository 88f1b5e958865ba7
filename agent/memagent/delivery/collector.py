"""Collector thread: turns rows into batches on a timer and hands them to the sender.

1. Rows leave the process twice. At every tick they're written to the disk as a draft, unpacked and
   cheap, so a kill loses no more than a tick. Every few seconds, or once there are BATCH_ROWS of
   them, a batch replaces the drafts.
2. Observers, such as the local forecaster, see the rows after that.
3. A busy server requests batches at longer intervals. No interval exceeds a tenth of the time that
   the local forecast leaves, or a second: its own warning isn't much later. Events wait a second.
4. Lines of the console come along, in drafts too: the last ones before a kill are those that count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from memagent.delivery.buffer import DroppedSamples, SampleBuffer
from memagent.delivery.envelope import Envelope, seal
from memagent.delivery.partial_batch import StreamColumns, join_columns, pack_chunk, row_count
from memagent.delivery.sender import Sender
from memagent.diagnostics import ErrorGuard, outlast_memory_errors
from memagent.wire.codec import encode
from memagent.wire.columns import DEFAULT_CODEC, Codec
from memagent.wire.messages import (
    BATCH_EVERY_S,
    MAX_BATCH_EVERY_S,
    MAX_CONSOLE_LINES,
    Batch,
    Chunk,
    ConsoleLine,
    Event,
)

if TYPE_CHECKING:
    from memagent.console.log import ConsoleLog

TICK_S = 0.2
"""Interval at which buffers are drained to the disk. A tick takes time itself: a killed process
loses less than 250 ms."""
CALM_TICK_S = 0.5
"""The same while memory isn't about to run out. With cold caches, a tick takes 0.2 ms."""
BATCH_ROWS = 500
CALM_BATCH_EVERY_S = 2.0
"""Interval of batches while memory isn't about to run out. With cold caches, packing and sending
one takes 3 ms, however few rows it has."""
FILE_BATCH_EVERY_S = 5.0
"""The same without a server: nobody waits for the batch, as its drafts are in the file."""
MAX_SHARE_OF_TIME_LEFT = 0.1
"""Longest interval between batches, as a share of the time until memory runs out."""
HEARTBEAT_S = 15.0
"""Silence after which an empty batch is sent, so a long evaluation doesn't look like a crash."""
REFRESH_S = 1.0
CALM_READING_AGE_S = 5.0
"""Age at which expensive slow readings are taken again while memory isn't about to run out. With
cold caches, files of the cgroup and of its pressure take 0.4 ms."""
MAX_PENDING_ROWS = 20_000
"""Rows kept per stream while the sender has no room."""
STOP_TIMEOUT_S = 0.5
"""A thread that takes longer to stop hangs in a driver or on a disk, and is abandoned."""


class Collector:
    """Drains `buffers`.

    `observe(stream, columns)` gets all rows soon after they were taken. `refresh` is called once a
    second, on another thread: a driver that takes seconds must not keep rows from the disk. It gets
    the age up to which expensive readings may stay.
    `time_left_s` returns the seconds until memory runs out, by the local forecast; 0 for any risk.
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
        observe: Callable[[str, StreamColumns], None],
        refresh: Callable[[float], None],
        time_left_s: Callable[[], float],
        console: ConsoleLog | None = None,
    ) -> None:
        self._run_id = run_id
        self._rank = rank
        self._attempt = attempt
        self._buffers = buffers
        self._sender = sender
        self._drops = drops
        self._guard = guard
        self._observe = observe
        self._refresh = refresh
        self._time_left_s = time_left_s
        self._requested_s = BATCH_EVERY_S
        self._pending: list[list[StreamColumns]] = [[] for _ in buffers]
        """Blocks of rows of the batch in progress, by buffer."""
        self._console = console
        self._lines: dict[int, ConsoleLine] = {}
        """Lines of the batch in progress, by number."""
        self._events: list[Event] = []
        self._drafted_events = 0
        self._seq = 0
        self._sent_at = time.monotonic()
        self._collecting_stop = _Stop()
        self._refreshing_stop = _Stop()
        self._collecting = threading.Thread(
            target=outlast_memory_errors,
            args=(self._collect,),
            name="memagent-collector",
            daemon=True,
        )
        self._refreshing = threading.Thread(
            target=outlast_memory_errors,
            args=(self._refresh_periodically,),
            name="memagent-refresher",
            daemon=True,
        )

    def start(self) -> None:
        """Start both threads. Everything that they call must exist by now."""
        self._collecting.start()
        self._refreshing.start()

    def emit(self, event: Event) -> None:
        # from any thread, without a lock: append is atomic, and _send deletes only what it copied
        self._events.append(event)

    def set_interval(self, requested_s: float) -> None:
        """Collect rows for as long as the server requests."""
        # in this order, a NaN becomes the shortest interval
        self._requested_s = min(max(BATCH_EVERY_S, requested_s), MAX_BATCH_EVERY_S)

    def close(self, *, is_death: bool = False) -> None:
        """Send the last batch with all that is in the buffers, and stop.

        After a death it has the last lines of the console, on all ranks.
        """
        self._collecting_stop.set()
        self._refreshing_stop.set()
        # one timeout for both threads together
        until = time.monotonic() + STOP_TIMEOUT_S
        self._collecting.join(STOP_TIMEOUT_S)
        self._refreshing.join(max(0.0, until - time.monotonic()))
        if self._collecting.is_alive():
            # the thread may still use its rows: sending them from here would race with it
            rows = sum(map(_rows_of, self._pending)) + sum(map(len, self._buffers))
            self._drops["not_delivered_at_exit"] += rows
            return
        with self._guard.section("collector"):
            new_rows = self._drain()
            if self._console is not None and (is_death or self._console.is_live):
                self._add_lines(self._console.take(is_last=True))
            try:
                self._send()
            except MemoryError:
                self._send("none")  # compressing takes a MiB, and there is no later time
            self._notify(new_rows)

    def _collect(self) -> None:
        due_at = time.monotonic() + TICK_S
        while not self._collecting_stop.wait(due_at - time.monotonic()):
            now = time.monotonic()
            interval_s = TICK_S
            # what has no room now waits for the next tick
            with self._guard.section("collector"), suppress(MemoryError):
                self._tick(now)
                interval_s = max(TICK_S, min(CALM_TICK_S, self._tolerable_delay_s()))
            # after a late tick, the ones that were missed are not made up for
            due_at = max(due_at, now) + interval_s

    def _refresh_periodically(self) -> None:
        """Refresh at once, for runs shorter than a second, and then periodically."""
        delay_s = 0.0
        while not self._refreshing_stop.wait(delay_s):
            delay_s = REFRESH_S
            with self._guard.section("probe refresh"):
                self._refresh(min(CALM_READING_AGE_S, self._tolerable_delay_s()))

    def _tick(self, now: float) -> None:
        """Write first, as rows must not be lost; observers may take their time."""
        new_rows = self._drain()
        if self._sender.has_room():
            new_lines = self._console.take() if self._console is not None else []
            self._add_lines(new_lines)
            if self._is_due(now):
                self._send()
            else:
                self._draft(new_rows, new_lines)
        self._notify(new_rows)

    def _is_due(self, now: float) -> bool:
        rows = max(map(_rows_of, self._pending), default=0)
        silence_s = now - self._sent_at
        if rows >= BATCH_ROWS:
            return True
        if not rows and not self._events and not self._lines:
            return silence_s >= HEARTBEAT_S
        if silence_s < BATCH_EVERY_S:
            return False
        return bool(self._events) or silence_s >= self._interval_s()

    def _interval_s(self) -> float:
        calm_s = CALM_BATCH_EVERY_S if self._sender.has_server else FILE_BATCH_EVERY_S
        return min(max(self._requested_s, calm_s), self._tolerable_delay_s())

    def _tolerable_delay_s(self) -> float:
        return MAX_SHARE_OF_TIME_LEFT * self._time_left_s()

    def _drain(self) -> list[tuple[str, StreamColumns]]:
        """Move rows from the buffers to the batch in progress. Return them as columns by stream."""
        new_rows = []
        for buffer, pending in zip(self._buffers, self._pending, strict=True):
            columns = buffer.drain_columns()
            if not columns:
                continue
            new_rows.append((buffer.stream, columns))
            rows, room = row_count(columns), MAX_PENDING_ROWS - _rows_of(pending)
            if rows > room:
                self._drops["queue_full"] += rows - room
                columns = {name: values[:room] for name, values in columns.items()}
            if room:
                pending.append(columns)
        return new_rows

    def _notify(self, new_rows: list[tuple[str, StreamColumns]]) -> None:
        for stream, columns in new_rows:
            with self._guard.section("local forecast"):
                self._observe(stream, columns)

    def _add_lines(self, lines: Sequence[ConsoleLine]) -> None:
        self._lines |= {line.number: line for line in lines}
        # of one console, so there are more only while nothing can be sent
        for number in sorted(self._lines)[:-MAX_CONSOLE_LINES]:
            del self._lines[number]

    def _draft(
        self, new_rows: list[tuple[str, StreamColumns]], new_lines: list[ConsoleLine]
    ) -> None:
        """Write to the disk what came since the last draft."""
        events = self._events[self._drafted_events :]
        if not new_rows and not events and not new_lines:
            return
        self._drafted_events += len(events)
        chunks = [Chunk(stream=stream, columns=columns) for stream, columns in new_rows]
        self._sender.draft(encode(self._batch(chunks, events, new_lines)))

    def _send(self, codec: Codec = DEFAULT_CODEC) -> None:
        """Send a batch of all pending rows. Its number is taken only now, so drops leave no gap.

        Without room for the batch, its rows and events stay. Raises MemoryError then.
        """
        pending, self._pending = self._pending, [[] for _ in self._buffers]
        lines, self._lines = self._lines, {}
        events = list(self._events)
        # Not a new list: another thread may be about to append to this one.
        del self._events[: len(events)]
        try:
            envelope = self._seal(pending, events, lines, codec)
        except MemoryError:
            self._pending = pending
            self._lines = lines
            self._events[:0] = events
            raise
        self._drafted_events = 0
        self._sender.put(envelope)
        self._seq += 1
        self._sent_at = time.monotonic()

    def _seal(
        self,
        pending: list[list[StreamColumns]],
        events: list[Event],
        lines: dict[int, ConsoleLine],
        codec: Codec,
    ) -> Envelope:
        chunks = [
            chunk
            for buffer, blocks in zip(self._buffers, pending, strict=True)
            if blocks and (chunk := self._pack(buffer.stream, blocks, codec))
        ]
        samples = sum(map(_rows_of, pending))
        console = [lines[number] for number in sorted(lines)]
        return seal(self._run_id, self._batch(chunks, events, console), samples=samples)

    def _batch(self, chunks: list[Chunk], events: list[Event], console: list[ConsoleLine]) -> Batch:
        return Batch(
            rank=self._rank,
            attempt=self._attempt,
            seq=self._seq,
            chunks=chunks,
            events=events,
            console=console,
            dropped_samples=dict(self._drops),
        )

    def _pack(self, stream: str, blocks: list[StreamColumns], codec: Codec) -> Chunk | None:
        try:
            return pack_chunk(stream, join_columns(blocks), codec)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - the guard raises or reports it
            self._guard.caught("packing samples", error)
        self._drops["internal_error"] += _rows_of(blocks)
        return None


class _Stop:
    """Ends one thread. Waiting for a `threading.Event` takes twice as long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self, timeout_s: float) -> bool:
        """Return True once it's set."""
        return self._lock.acquire(timeout=max(0.0, timeout_s))

    def set(self) -> None:
        if self._lock.locked():
            self._lock.release()


def _rows_of(blocks: list[StreamColumns]) -> int:
    return sum(map(row_count, blocks))
