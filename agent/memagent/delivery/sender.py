"""The thread that delivers parcels, in order, one at a time, and tries again for as long as it takes.

1. Parcels wait in a queue that is bounded in bytes; `has_room` tells the collector when to hold back.
2. A failed delivery waits (1 s doubling to 60 s, with jitter; or as the server says) and sends the same bytes again.
3. A rejected parcel is counted and left behind: the next ones may be fine.
4. A server that does not know the run is told of its start again, then asked to take the same parcel.
5. `close` gives what is queued a deadline; what is left then is counted as dropped.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable

from memagent.delivery.buffer import Drops
from memagent.delivery.http import UnknownRunError
from memagent.delivery.parcel import Parcel, Transport
from memagent.errors import DeliveryError, RejectedError
from memagent.guard import Guard, tell
from memagent.wire.messages import BatchReply

QUEUE_BYTES = 16 * 2**20
TIMEOUT_S = 15.0
FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 60.0


class Sender:
    """`start` is the run's first parcel; `on_reply` gets the server's answers to batches, on this thread."""

    def __init__(
        self, transport: Transport, start: Parcel, drops: Drops, guard: Guard, on_reply: Callable[[BatchReply], None]
    ) -> None:
        self._transport, self._start, self._drops, self._guard, self._on_reply = (
            transport,
            start,
            drops,
            guard,
            on_reply,
        )
        self._queue: deque[Parcel] = deque([start])
        self._queued_bytes = len(start.body)
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._failures = 0
        self._last_problem: str | None = None
        self._thread = threading.Thread(target=self._run, name="memagent-sender", daemon=True)
        self._thread.start()

    def has_room(self) -> bool:
        return self._queued_bytes < QUEUE_BYTES

    @property
    def is_failing(self) -> bool:
        """Whether the last delivery failed: the far end is away."""
        return self._failures > 0

    def put(self, item: Parcel) -> None:
        with self._changed:
            self._queue.append(item)
            self._queued_bytes += len(item.body)
            self._changed.notify()

    def close(self, deadline_s: float) -> None:
        """Deliver what is queued, for at most `deadline_s` seconds, then stop. Safe to call twice."""
        with self._changed:
            self._deadline = time.monotonic() + deadline_s
            self._changed.notify()
        self._thread.join(deadline_s + 1.0)
        left = sum(item.samples for item in self._queue)
        if self._queue:
            self._drops["not_delivered_at_exit"] += left
            tell(f"gave up delivering {left} samples at exit: {self._last_problem or 'no time left'}")
            self._queue.clear()

    def _run(self) -> None:
        while (item := self._next()) is not None:
            settled = True
            with self._guard.at("sender"):
                settled = self._deliver(item)
            if not settled:
                break
            with self._changed:
                if not self._queue:
                    break  # given up by `close` while this one was under way
                self._queue.popleft()
                self._queued_bytes -= len(item.body)
        with self._guard.at("sender"):
            self._transport.close()

    def _next(self) -> Parcel | None:
        with self._changed:
            while not self._queue:
                if self._deadline is not None:
                    return None
                self._changed.wait()
            return None if self._is_over() else self._queue[0]

    def _deliver(self, item: Parcel) -> bool:
        """True when the parcel has arrived or was rejected for good, False when the deadline passed with it undelivered."""
        while not self._is_over():
            try:
                reply = self._attempt(item)
            except RejectedError as error:
                self._drops["rejected"] += item.samples
                tell(str(error))
                return True
            except DeliveryError as error:
                self._back_off(error)
                continue
            if self._failures:
                tell("delivery works again")
            self._failures, self._last_problem = 0, None
            if reply is not None:
                self._on_reply(reply)
            return True
        return False

    def _attempt(self, item: Parcel) -> BatchReply | None:
        try:
            return self._transport.deliver(item, timeout_s=self._time_left(TIMEOUT_S))
        except UnknownRunError:
            self._transport.deliver(self._start, timeout_s=self._time_left(TIMEOUT_S))
            return self._transport.deliver(item, timeout_s=self._time_left(TIMEOUT_S))

    def _back_off(self, error: DeliveryError) -> None:
        self._last_problem = str(error)
        self._failures += 1
        if self._failures == 1:
            tell(f"{error}; samples wait and training goes on")
        delay = error.retry_after_s
        if delay is None:
            delay = min(FIRST_DELAY_S * 2 ** (self._failures - 1), LONGEST_DELAY_S) * random.uniform(0.5, 1.0)  # noqa: S311
        until = time.monotonic() + min(delay, LONGEST_DELAY_S)
        with self._changed:
            while not self._is_over() and (left := until - time.monotonic()) > 0:
                self._changed.wait(self._time_left(left))
                if self._deadline is not None:  # closing: one more try at once, then the usual pace
                    until = min(until, time.monotonic() + 0.2)

    def _is_over(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _time_left(self, most_s: float) -> float:
        if self._deadline is None:
            return most_s
        return max(0.05, min(most_s, self._deadline - time.monotonic()))
