"""Sender thread: delivers envelopes in order, one at a time, and retries as long as it takes.

1. Every envelope goes to the run's file first (see `spool`), so a kill loses nothing that was put
   here. Without a server, that's all.
2. The run's start is delivered before everything else, and again if the server doesn't know the
   run.
3. A failed delivery waits (1 s doubling to 60 s, with jitter; or as the server asks) and sends the
   same bytes again.
4. A rejected envelope is counted and skipped, since the next ones may be accepted. If the start
   itself is rejected, the server would accept nothing else: everything stays in the file, and no
   more is sent.
5. A backlog is sent with short pauses, so that neither training nor the server slows down.
6. `close` gives the queue a deadline, a short one if the server is away; the first failure ends it.
   The rest stays in the file, and `memagent sync` uploads it. Samples that are only in memory are
   counted as dropped.
7. Where the script leaves no memory, delivery is tried again, too.
"""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable
from enum import Enum, auto

from memagent.delivery.buffer import DroppedSamples
from memagent.delivery.envelope import Envelope, Reply, Transport
from memagent.delivery.run_file import RunFile
from memagent.delivery.spool import Spool
from memagent.diagnostics import (
    MAX_REPORTED_MISTAKES,
    ErrorGuard,
    notify_user,
    outlast_memory_errors,
)
from memagent.errors import DeliveryError, RejectedError, StartRequiredError
from memagent.wire.messages import BatchReply, StartReply

_random = random.SystemRandom()
"""The training script's own generator must not advance: it decides what the script computes."""
TIMEOUT_S = 15.0
FIRST_DELAY_S = 1.0
MAX_DELAY_S = 60.0
LAST_TRY_S = 0.3
"""Time at the end of a run whose server is away: it may be back since the last attempt."""
CATCH_UP_PAUSE_S = 0.1
"""Pause between envelopes of a backlog. A delivery takes a millisecond of the interpreter: so 1 %
of the training's time, and a backlog shrinks ten times as fast as it grew."""
HANGING_DISK_S = 0.5
"""Longest wait for a thread that hangs in a write."""
LAST_WRITE_S = 3.0
"""The same for a run's last message. On a busy disk, a write may take a second."""


class StartRefusedError(RejectedError):
    """The server will never accept the run's start: another version, or not a memagent server."""


class DeliveryOutcome(Enum):
    """Result of delivering an envelope."""

    DELIVERED = auto()
    REJECTED = auto()
    UNDELIVERED = auto()
    """The sender has to stop."""


class Sender:
    """Delivers to `transport` after `start`; without one, everything stays in `file`.

    `on_reply` gets the replies to batches, `on_start` those to starts, on the sender's thread.
    """

    def __init__(
        self,
        file: RunFile,
        transport: Transport | None,
        drops: DroppedSamples,
        guard: ErrorGuard,
        on_reply: Callable[[BatchReply], None],
        on_start: Callable[[StartReply], None] = lambda _: None,
    ) -> None:
        self._file = file
        self._drops = drops
        self._guard = guard
        self._on_reply = on_reply
        self._on_start = on_start
        self.has_server = transport is not None
        self._spool = Spool(file, drops, is_destination=transport is None)
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._failures = 0
        self._last_problem: str | None = None
        self._is_refused = False
        self._reported_rejections: set[str] = set()
        self._has_reported_disk = False
        self._transport = transport
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. Everything that the replies reach must exist by now."""
        if self._transport is None:
            return
        self._thread = threading.Thread(
            target=outlast_memory_errors,
            args=(functools.partial(self._run, self._transport),),
            name="memagent-sender",
            daemon=True,
        )
        self._thread.start()

    def has_room(self) -> bool:
        return self._spool.has_room()

    @property
    def is_failing(self) -> bool:
        """Return True if the last delivery failed, so the server is away."""
        return self._failures > 0

    def put(self, item: Envelope) -> None:
        """Queue an envelope. It's on the disk when this returns, if the disk is writable."""
        wait_s = LAST_WRITE_S if item.kind == "finish" else HANGING_DISK_S
        if not self._with_spool(lambda: self._spool.put(item), wait_s, wakes_thread=True):
            self._drops["disk_hangs"] += item.samples

    def draft(self, body: bytes) -> None:
        """Write rows of the batch in progress to the disk, in case this process is killed."""
        self._with_spool(lambda: self._spool.draft(body), HANGING_DISK_S)

    def close(self, deadline_s: float) -> None:
        """Deliver the queue for at most `deadline_s` seconds, then stop. May be called twice."""
        wait_s = LAST_TRY_S if self.is_failing else deadline_s
        self._deadline = time.monotonic() + wait_s
        if self._thread is None:
            self._with_spool(self._spool.close, HANGING_DISK_S, wakes_thread=True)
        else:
            self._with_spool(lambda: None, HANGING_DISK_S, wakes_thread=True)
            self._thread.join(wait_s + 0.1)
        self._report_undelivered()

    def _with_spool(
        self, action: Callable[[], None], wait_s: float, *, wakes_thread: bool = False
    ) -> bool:
        """Call `action` with the lock. Return False if a hanging disk holds the lock."""
        if not self._changed.acquire(timeout=wait_s):
            return False
        try:
            action()
            trouble = self._spool.trouble
            if wakes_thread:
                self._changed.notify_all()
        finally:
            self._changed.release()
        # without the lock, since writing to the terminal may block
        if trouble is not None and not self._has_reported_disk:
            self._has_reported_disk = True
            notify_user(trouble)
        return True

    def _report_undelivered(self) -> None:
        reason = self._last_problem or self._spool.trouble or "no time left"
        if (dropped := self._spool.samples_in_memory) > 0:
            self._drops["not_delivered_at_exit"] += dropped
            notify_user(f"dropped {dropped} undelivered samples at exit: {reason}")
        if self._spool.waits_on_disk:
            notify_user(
                f"{self._spool.samples_on_disk} samples wait in {self._file.path} ({reason}): "
                "`memagent sync` uploads them"
            )

    # -- on the sender's thread -----------------------------------------------------------------

    def _run(self, transport: Transport) -> None:
        outcome = self._deliver_guarded(transport, self._file.start)
        can_send = outcome in (DeliveryOutcome.DELIVERED, DeliveryOutcome.REJECTED)
        while can_send and (item := self._next()) is not None:
            outcome = self._deliver_guarded(transport, item)
            if outcome is DeliveryOutcome.UNDELIVERED:
                break
            if outcome is None:  # the guard has reported an internal error
                self._drops["internal_error"] += item.samples
            with self._changed:
                self._spool.pop()
                if self._spool:
                    self._changed.wait_for(lambda: self._deadline is not None, CATCH_UP_PAUSE_S)
        with self._guard.section("sender"):
            transport.close()
        with self._changed:
            # A refused run is still recorded, so the spool stays open until the end.
            self._changed.wait_for(lambda: self._deadline is not None or not self._is_refused)
            self._spool.close()

    def _next(self) -> Envelope | None:
        with self._changed:
            while (item := self._spool.head()) is None:
                if self._deadline is not None:
                    return None
                self._changed.wait()
            return None if self._is_over() else item

    def _deliver_guarded(self, transport: Transport, item: Envelope) -> DeliveryOutcome | None:
        """Return None after an internal error. Raises MemoryError: the item is delivered later."""
        try:
            return self._deliver(transport, item)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - the guard raises or reports it
            self._guard.caught("sender", error)
            return None

    def _deliver(self, transport: Transport, item: Envelope) -> DeliveryOutcome:
        """Deliver an envelope, with retries until the deadline."""
        while not self._is_over():
            try:
                reply = self._attempt(transport, item)
            except StartRefusedError as error:
                self._is_refused = True
                self._last_problem = str(error)
                notify_user(
                    f"{error}; nothing more is sent, and the run is recorded to {self._file.path}"
                )
                return DeliveryOutcome.UNDELIVERED
            except RejectedError as error:
                self._drops["rejected"] += item.samples
                self._report_rejection(str(error))
                return DeliveryOutcome.REJECTED
            except DeliveryError as error:
                # read before the wait, which close ends early: one more attempt is due then
                is_last = self._deadline is not None
                self._back_off(error)
                if is_last:
                    return DeliveryOutcome.UNDELIVERED
                continue
            if self._failures:
                notify_user("delivery works again")
            self._failures = 0
            self._last_problem = None
            if isinstance(reply, StartReply):
                self._on_start(reply)
            elif reply is not None:
                self._on_reply(reply)
            return DeliveryOutcome.DELIVERED
        return DeliveryOutcome.UNDELIVERED

    def _attempt(self, transport: Transport, item: Envelope) -> Reply | None:
        if item is self._file.start:
            return self._deliver_start(transport)
        try:
            return transport.deliver(item, timeout_s=self._time_left(TIMEOUT_S))
        except StartRequiredError:
            self._deliver_start(transport)
            return transport.deliver(item, timeout_s=self._time_left(TIMEOUT_S))

    def _deliver_start(self, transport: Transport) -> Reply | None:
        try:
            return transport.deliver(self._file.start, timeout_s=self._time_left(TIMEOUT_S))
        except RejectedError as error:
            raise StartRefusedError(str(error)) from error

    def _report_rejection(self, message: str) -> None:
        """Report each message once, and only a few: there is a batch per second."""
        reported = self._reported_rejections
        if message not in reported and len(reported) < MAX_REPORTED_MISTAKES:
            reported.add(message)
            notify_user(message)

    def _back_off(self, error: DeliveryError) -> None:
        """Wait before the next attempt, or until `close` asks for the last one."""
        self._last_problem = str(error)
        self._failures += 1
        if self._failures == 1 and self._deadline is None:
            notify_user(f"{error}; samples are buffered and training continues")
        delay_s = retry_delay_s(
            self._failures,
            first_s=FIRST_DELAY_S,
            max_s=MAX_DELAY_S,
            retry_after_s=error.retry_after_s,
        )
        until = time.monotonic() + delay_s
        with self._changed:
            while self._deadline is None and (remaining_s := until - time.monotonic()) > 0:
                self._changed.wait(remaining_s)

    def _is_over(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _time_left(self, max_s: float) -> float:
        if self._deadline is None:
            return max_s
        # never 0, with which an attempt could not even connect
        return max(0.05, min(max_s, self._deadline - time.monotonic()))


def retry_delay_s(
    failures: int, *, first_s: float, max_s: float, retry_after_s: float | None = None
) -> float:
    """Return the seconds to wait after so many failures in a row, at most `max_s`.

    The jitter spreads clients that failed together. If a server asks for a delay, the jitter only
    adds to it.
    """
    if retry_after_s is not None:
        delay_s = retry_after_s * _random.uniform(1.0, 1.25)
    else:
        exponent = min(failures - 1, 30)  # a float holds 2**1023 at most
        delay_s = min(first_s * 2**exponent, max_s)
        delay_s *= _random.uniform(0.5, 1.0)
    return min(delay_s, max_s)
