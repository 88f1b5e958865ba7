"""The thread that delivers parcels, in order, one at a time, and tries again for as long as it takes.

1. Every parcel goes to the run's file first (see `spool`), so that a kill loses nothing that was put here. Without a server that is all.
2. The run's start is delivered before everything else, and again when the server says that it does not know the run.
3. A failed delivery waits (1 s doubling to 60 s, with jitter; or as the server says) and sends the same bytes again.
4. A rejected parcel is counted and left behind: the next ones may be fine. Where the start itself is rejected the server would take
   nothing else: all stays in the file, and the server is left alone.
5. What piled up while the server was away is sent with small pauses: neither the training nor the server should feel it.
6. `close` gives what waits a deadline, a short one if the server is away; the first failure ends it. What is left stays in the file,
   and `memagent sync` uploads it. What is only in memory is counted as dropped.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from memagent.delivery.buffer import DroppedSamples
from memagent.delivery.envelope import Envelope, Transport
from memagent.delivery.run_file import RunFile
from memagent.delivery.spool import Spool
from memagent.delivery.transport import UnknownRunError
from memagent.diagnostics.console import notify_user
from memagent.diagnostics.error_guard import MAX_REPORTED_MISTAKES, ErrorGuard
from memagent.errors import DeliveryError, RejectedError
from memagent.wire.messages import BatchReply

TIMEOUT_S = 15.0
FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 60.0
LAST_TRY_S = 0.3
"""At the end of a run whose server is away: it may have come back since the last try."""
CATCH_UP_PAUSE_S = 0.1
"""A delivery takes a millisecond of the interpreter: 1 % of the training's time, and a backlog shrinks ten times as fast as it grew."""
HANGING_DISK_S = 0.5
"""Nobody waits longer than this for a thread that is stuck in writing."""


class StartRefusedError(RejectedError):
    """The server will never take the run's start: it is of another version, or no memagent server at all."""


class Sender:
    """Delivers to `transport`, or with None leaves all in `file`. `on_reply` gets the answers to batches, on the sender's thread."""

    def __init__(
        self,
        file: RunFile,
        transport: Transport | None,
        drops: DroppedSamples,
        guard: ErrorGuard,
        on_reply: Callable[[BatchReply], None],
    ) -> None:
        self._file, self._transport, self._drops, self._guard, self._on_reply = (
            file,
            transport,
            drops,
            guard,
            on_reply,
        )
        self._spool = Spool(file, drops, is_destination=transport is None)
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._failures = 0
        self._last_problem: str | None = None
        self._is_refused = False
        self._told: set[str] = set()
        self._has_told_of_disk = False
        self._thread: threading.Thread | None = None
        if transport is not None:
            self._thread = threading.Thread(
                target=self._run, args=(transport,), name="memagent-sender", daemon=True
            )
            self._thread.start()

    def has_room(self) -> bool:
        return self._spool.has_room()

    @property
    def is_failing(self) -> bool:
        """Whether the last delivery failed: the far end is away."""
        return self._failures > 0

    def put(self, item: Envelope) -> None:
        """Hand over a parcel; it is on the disk when this returns, if the disk can be written."""
        if not self._locked(lambda: self._spool.put(item), wakes=True):
            self._drops["disk_hangs"] += item.samples

    def draft(self, body: bytes) -> None:
        """Keep rows of the batch that is still being gathered on the disk, for the case that this process is killed."""
        self._locked(lambda: self._spool.draft(body))

    def close(self, deadline_s: float) -> None:
        """Deliver what waits, for at most `deadline_s` seconds, then stop. Safe to call twice."""
        wait_s = LAST_TRY_S if self.is_failing else deadline_s
        self._deadline = time.monotonic() + wait_s
        self._locked(self._spool.close if self._thread is None else _nothing, wakes=True)
        if self._thread is not None:
            self._thread.join(wait_s + 0.1)
        self._account()

    def _locked(self, work: Callable[[], None], *, wakes: bool = False) -> bool:
        """Do something to the spool, and with `wakes` wake the thread; False if the lock cannot be had because a disk hangs."""
        if not self._changed.acquire(timeout=HANGING_DISK_S):
            return False
        try:
            work()
            trouble = self._spool.trouble
            if wakes:
                self._changed.notify_all()
        finally:
            self._changed.release()
        if trouble is not None and not self._has_told_of_disk:
            self._has_told_of_disk = True
            notify_user(trouble)
        return True

    def _account(self) -> None:
        """Say what did not arrive, and where it is."""
        reason = self._last_problem or self._spool.trouble or "no time left"
        if (lost := self._spool.samples_in_memory) > 0:
            self._drops["not_delivered_at_exit"] += lost
            notify_user(f"gave up delivering {lost} samples at exit: {reason}")
        if self._spool.waits_on_disk:
            notify_user(
                f"{self._spool.samples_on_disk} samples wait in {self._file.path} ({reason}): `memagent sync` uploads them"
            )

    # -- on the sender's thread ------------------------------------------------------------------------------------------------

    def _run(self, transport: Transport) -> None:
        is_started = False
        with self._guard.section("sender"):
            is_started = self._deliver(transport, self._file.start)
        while is_started and (item := self._next()) is not None:
            is_settled: bool | None = None
            with self._guard.section("sender"):
                is_settled = self._deliver(transport, item)
            if is_settled is False:
                break
            if is_settled is None:
                self._drops["internal_error"] += item.samples
            with self._changed:
                self._spool.pop()
                if self._spool:
                    self._changed.wait_for(lambda: self._deadline is not None, CATCH_UP_PAUSE_S)
        with self._guard.section("sender"):
            transport.close()
        with self._changed:
            self._changed.wait_for(lambda: self._deadline is not None or not self._is_refused)
            self._spool.close()

    def _next(self) -> Envelope | None:
        with self._changed:
            while (item := self._spool.head()) is None:
                if self._deadline is not None:
                    return None
                self._changed.wait()
            return None if self._is_over() else item

    def _deliver(self, transport: Transport, item: Envelope) -> bool:
        """True when the parcel has arrived or was rejected for good, False when the end has come with it undelivered."""
        while not self._is_over():
            try:
                reply = self._attempt(transport, item)
            except StartRefusedError as error:
                self._is_refused, self._last_problem = True, str(error)
                notify_user(
                    f"{error}; nothing more is sent, and the run is recorded to {self._file.path}"
                )
                return False
            except RejectedError as error:
                self._drops["rejected"] += item.samples
                self._tell_refusal(str(error))
                return True
            except DeliveryError as error:
                is_last = self._deadline is not None
                self._back_off(error)
                if is_last:
                    return False
                continue
            if self._failures:
                notify_user("delivery works again")
            self._failures, self._last_problem = 0, None
            if reply is not None:
                self._on_reply(reply)
            return True
        return False

    def _attempt(self, transport: Transport, item: Envelope) -> BatchReply | None:
        if item is self._file.start:
            self._start(transport)
            return None
        try:
            return transport.deliver(item, timeout_s=self._time_left(TIMEOUT_S))
        except UnknownRunError:
            self._start(transport)
            return transport.deliver(item, timeout_s=self._time_left(TIMEOUT_S))

    def _start(self, transport: Transport) -> None:
        try:
            transport.deliver(self._file.start, timeout_s=self._time_left(TIMEOUT_S))
        except RejectedError as error:
            raise StartRefusedError(str(error)) from error

    def _tell_refusal(self, message: str) -> None:
        """Each once, and not many: there is a batch a second."""
        if message not in self._told and len(self._told) < MAX_REPORTED_MISTAKES:
            self._told.add(message)
            notify_user(message)

    def _back_off(self, error: DeliveryError) -> None:
        """Wait before the next try, until `close` asks for the last one."""
        self._last_problem = str(error)
        self._failures += 1
        if self._failures == 1 and self._deadline is None:
            notify_user(f"{error}; samples wait and training goes on")
        if error.retry_after_s is None:
            delay = min(FIRST_DELAY_S * 2 ** min(self._failures - 1, 10), LONGEST_DELAY_S)
            delay *= random.uniform(0.5, 1.0)  # noqa: S311  # nosec B311
        else:  # many were told the same, and must not come back all at once
            delay = error.retry_after_s * random.uniform(1.0, 1.25)  # noqa: S311  # nosec B311
        until = time.monotonic() + min(delay, LONGEST_DELAY_S)
        with self._changed:
            while self._deadline is None and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)

    def _is_over(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _time_left(self, most_s: float) -> float:
        if self._deadline is None:
            return most_s
        return max(0.05, min(most_s, self._deadline - time.monotonic()))


def _nothing() -> None:
    pass
