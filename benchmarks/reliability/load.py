"""Load: ranks that deliver with the agent's sender, and a record of acknowledgements and other
responses.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from benchmarks.reliability.expected_samples import ROWS, STREAMS, batch_of
from memagent.delivery import sender as delivery
from memagent.delivery.api_client import HttpTransport
from memagent.delivery.buffer import DroppedSamples
from memagent.delivery.envelope import Envelope, Transport, seal
from memagent.delivery.run_file import RunFile
from memagent.delivery.sender import Sender
from memagent.diagnostics import ErrorGuard
from memagent.errors import DeliveryError, RejectedError
from memagent.wire.codec import decode
from memagent.wire.messages import Batch, BatchReply, Finish, RunStart


@dataclass
class Record:
    """Record of one run's batches: (rank, seq) -> time of creation, the acknowledged ones, and
    every other response.
    """

    run_id: str
    batches: dict[tuple[int, int], float] = field(default_factory=dict)
    acknowledged: set[tuple[int, int]] = field(default_factory=set)
    answers: Counter[str] = field(default_factory=Counter)
    """Responses other than acknowledgements, without the server's address."""
    wrong: list[str] = field(default_factory=list)
    """Responses that no agent should get: a permanent refusal of a batch, or a refusal without
    Retry-After.
    """

    @property
    def is_delivered(self) -> bool:
        return len(self.acknowledged) == len(self.batches)


class Witness(Transport):
    """Transport over HTTP that records each result."""

    def __init__(self, server: str, record: Record, timeout_s: float) -> None:
        self._inner, self._server, self._record, self._timeout_s = (
            HttpTransport(server),
            server,
            record,
            timeout_s,
        )

    def deliver(self, item: Envelope, *, timeout_s: float) -> BatchReply | None:
        try:
            reply = self._inner.deliver(item, timeout_s=min(timeout_s, self._timeout_s))
        except DeliveryError as error:
            self._note(error)
            raise
        if item.kind == "batch":
            batch = decode(item.body, Batch)
            if reply is None or reply.accepted != ROWS * len(STREAMS):
                self._record.wrong.append(
                    f"batch {batch.seq} of rank {batch.rank} was acknowledged as {reply}"
                )
            self._record.acknowledged.add((batch.rank, batch.seq))
        return reply

    def close(self) -> None:
        self._inner.close()

    def _note(self, error: DeliveryError) -> None:
        message = str(error).replace(self._server, "the server")
        self._record.answers[message] += 1
        answered = re.search(r" answered (\d+)", message)
        has_no_time = (
            answered is not None and answered[1] in ("429", "503") and error.retry_after_s is None
        )
        is_unclear = answered is not None and answered[1] not in (
            "404",
            "408",
            "429",
            "502",
            "503",
            "504",
        )
        if isinstance(error, RejectedError) or is_unclear or has_no_time:
            self._record.wrong.append(message)


class Load:
    """Run `ranks` agents that each make a batch every `every_s` seconds while `making`. All are
    closed at the end of the context.

    `clock` returns the agents' time, in seconds since the epoch.
    """

    def __init__(
        self,
        server: str,
        run_id: str,
        folder: Path,
        *,
        ranks: int = 3,
        every_s: float = 0.03,
        timeout_s: float = 3.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.record = Record(run_id)
        self._ranks, self._every_s, self._clock = ranks, every_s, clock
        self._guard = ErrorGuard()
        self._senders = [self._sender(server, rank, folder, timeout_s) for rank in range(ranks)]
        self._next_seq = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._make, name=f"load-{run_id}")

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        for rank, sender in enumerate(self._senders):
            finish = Finish(
                rank=rank, status="completed", step=self._next_seq * ROWS, finished_at=self._clock()
            )
            sender.put(seal(self.record.run_id, finish))
            sender.close(5.0)

    def wait_for(self, batches: int, patience_s: float = 60.0) -> None:
        """Wait for `count` more acknowledged batches. Raises AssertionError after the timeout."""
        goal = len(self.record.acknowledged) + batches
        self._wait(lambda: len(self.record.acknowledged) >= goal, patience_s)

    def wait_until_told(self, pattern: str, patience_s: float = 60.0) -> None:
        """Wait until an agent gets a matching response other than an acknowledgement. Raises
        AssertionError after the timeout.
        """
        self._wait(
            lambda: any(re.search(pattern, answer) for answer in list(self.record.answers)),
            patience_s,
        )

    def stop(self) -> None:
        """Stop making batches."""
        self._stop.set()
        self._thread.join()

    def drain(self, patience_s: float) -> bool:
        """Stop making batches and wait for the last acknowledgement. Return False after the
        timeout.
        """
        self.stop()
        try:
            self._wait(lambda: self.record.is_delivered, patience_s)
        except AssertionError:
            return False
        return True

    def _wait(self, condition: Callable[[], bool], patience_s: float) -> None:
        until = time.monotonic() + patience_s
        while not condition():
            assert not self._guard.errors, f"the agent failed: {self._guard.errors}"
            assert time.monotonic() < until, (
                f"nothing more is delivered: {self.record.answers.most_common(3)}"
            )
            time.sleep(0.01)

    def _make(self) -> None:
        while not self._stop.wait(self._every_s):
            for rank, sender in enumerate(self._senders):
                at = self._clock()
                self.record.batches[rank, self._next_seq] = at
                sender.put(
                    seal(
                        self.record.run_id,
                        batch_of(self.record.run_id, rank, self._next_seq, at),
                        ROWS * len(STREAMS),
                    )
                )
            self._next_seq += 1

    def _sender(self, server: str, rank: int, folder: Path, timeout_s: float) -> Sender:
        run_id = self.record.run_id
        start = seal(
            run_id,
            RunStart(run_id=run_id, rank=rank, world_size=self._ranks, project="reliability"),
        )
        file = RunFile(folder / f"{run_id}-{rank}.memagent", start)
        sender = Sender(
            file, Witness(server, self.record, timeout_s), DroppedSamples(), self._guard, _ignore
        )
        sender.start()
        return sender


@contextmanager
def shortened_delays() -> Iterator[None]:
    """Shorten the agents' waits to a tenth and silence their messages, so that more faults fit into
    a minute.
    """
    names = {
        "FIRST_DELAY_S": 0.1,
        "MAX_DELAY_S": 3.0,
        "CATCH_UP_PAUSE_S": 0.005,
        "notify_user": _ignore,
    }
    before = {name: getattr(delivery, name) for name in names}
    for name, value in names.items():
        setattr(delivery, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(delivery, name, value)


def _ignore(_: object) -> None:
    pass
