"""Notifications with a fault at every line of their delivery, through each channel.

`python -m benchmarks.reliability.deliveries [--count N]` queues N messages for each channel and
delivers each to a real server of the channel's kind. At one line of the code that leases, sends and
marks, the delivery fails: its process ends there (a BaseException), or the line raises an error of
Python's or of the database's. Then deliveries go on until it is sent or dead. No message may be
lost, and none may arrive more than twice. One that is given up must be a dead letter.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from memagent.wire.messages import RunStart
from memagent_server.notify import channel, dispatcher, message_data
from memagent_server.store import alerts, due_notifications, outbox
from memagent_server.store.alerts import add_transition, open_alert
from memagent_server.store.engine import Database
from memagent_server.store.migrate import upgrade
from memagent_server.store.models import NotificationRow
from memagent_server.store.runs import start_run
from tests.server.notify.far_ends import HttpService, MailService
from tests.server.notify.test_dispatcher_channels import KINDS

COUNT = 1_112
"""Of each channel: 10,000 together."""
MAX_TURNS = 40
MAX_COPIES = 2
FINAL = ("sent", "dead")
_FILES = {module.__file__ for module in (alerts, channel, dispatcher, message_data, outbox)}


class EndedError(BaseException):
    """The end of the process, which no handler may see."""


FAULTS: dict[str, Callable[[], BaseException]] = {
    "the process ends": EndedError,
    "an error": lambda: RuntimeError("a fault"),
    "a database error": lambda: OperationalError("a fault", {}, Exception("database is locked")),
}


@dataclass
class Outcome:
    """What became of the messages of a channel."""

    name: str
    messages: int = 0
    lines: int = 0
    copies: Counter[int] = field(default_factory=Counter)
    """Numbers of messages by the number of their copies at the far end."""
    states: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        copies = ", ".join(
            f"{times} times {count:,}" for times, count in sorted(self.copies.items())
        )
        states = ", ".join(f"{state} {count:,}" for state, count in self.states.items())
        return f"{self.name}: {self.messages:,} messages, {self.lines} lines; arrived {copies}; {states}"


class Deliveries:
    """The deliveries of one channel, each in a new database."""

    def __init__(self, name: str, folder: Path) -> None:
        self.outcome = Outcome(name)
        self._name = name
        self._service = MailService() if name == "email" else HttpService()
        self._database = Database(f"sqlite:///{folder / name}.db")
        upgrade(self._database)
        self._now = 100.0

    def close(self) -> None:
        self._database.close()
        self._service.close()

    def deliver(self, run_id: str, line: int, make: Callable[[], BaseException] | None) -> int:
        """Deliver a message whose delivery fails at a line; return the number of lines run."""
        self._queue(run_id)
        self._service.messages.clear()
        ran = self._failing_turn(line, make)
        turns = 0
        # a turn without a message to deliver may edit one
        while (row := self._newest()).state not in FINAL and turns < MAX_TURNS:
            turns += 1
            self._now += dispatcher.MAX_RETRY_S * 1.5
            self._turn()
        self._judge(row, f"{run_id}, line {line}")
        return ran

    def _newest(self) -> NotificationRow:
        with self._database.read() as session:
            newest = select(NotificationRow).order_by(NotificationRow.id.desc()).limit(1)
            return session.scalars(newest).one()

    def _queue(self, run_id: str) -> None:
        with self._database.write() as session:
            start_run(session, RunStart(run_id=run_id), self._now)
            alert = open_alert(session, run_id=run_id, stream_id=None, rule="oom_forecast", severity="warning",
                               state="firing", step=5, summary="", data={"step": 5}, now=self._now)  # fmt: skip
            add_transition(session, alert, from_state="pending", to_state="firing", reason="",
                           now=self._now, channels=[self._name])  # fmt: skip

    def _turn(self) -> bool:
        made = KINDS[self._name](self._service.url)
        route = due_notifications.ChannelFilter(self._name)
        return dispatcher.Dispatcher(
            self._database, route, made, "http://x", lambda: self._now
        ).turn()

    def _failing_turn(self, line: int, make: Callable[[], BaseException] | None) -> int:
        lines = 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal lines
            if frame.f_code.co_filename not in _FILES:
                return None
            if event == "line":
                lines += 1
                if lines == line and make is not None:
                    raise make()
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            self._turn()
        except (EndedError, RuntimeError, OperationalError):
            pass  # the worker logs it and takes another turn
        finally:
            sys.settrace(before)
        return lines

    def _judge(self, row: NotificationRow, place: str) -> None:
        copies = len(self._service.messages)
        self.outcome.messages += 1
        self.outcome.copies[copies] += 1
        self.outcome.states[row.state] += 1
        is_lost = copies == 0 and row.state != "dead"
        if is_lost or copies > MAX_COPIES or row.state not in FINAL:
            self.outcome.wrong.append(f"{place}: {row.state}, {copies} copies, {row.last_error}")


def measured(name: str, count: int, seed: int = 7) -> Outcome:
    """Deliver `count` messages through a channel, with faults spread over all lines."""
    source = random.Random(f"{seed} {name}")
    with tempfile.TemporaryDirectory(prefix="memagent-deliveries-") as folder:
        deliveries = Deliveries(name, Path(folder))
        try:
            lines = deliveries.deliver("whole", 0, None)
            deliveries.outcome.lines = lines
            kinds = list(FAULTS.values())
            for number in range(count):
                line = 1 + number % lines if count > lines else source.randint(1, lines)
                deliveries.deliver(f"run-{number}", line, kinds[number // lines % 3])
        finally:
            deliveries.close()
    return deliveries.outcome


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reliability.deliveries", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    parser.add_argument("--count", type=int, default=COUNT, help="messages of each channel")
    parser.add_argument("--channels", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    is_wrong = False
    for name in options.channels:
        outcome = measured(name, options.count, options.seed)
        print(outcome, *outcome.wrong, sep="\n", flush=True)
        is_wrong = is_wrong or bool(outcome.wrong)
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
