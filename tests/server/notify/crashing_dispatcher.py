"""Process that delivers and is killed at a given line.

Run `python crashing_dispatcher.py DATABASE_URL RECEIVER_URL`. Each line on stdin is
`VERB KILL_AT NOW`; each runs in a fork, and its exit status is printed (-9 if it was killed).

`turn` is one turn of a dispatcher, which edits if nothing is due. `deliver` delivers all that is
due. `open` opens an alert with its transition and notification. KILL_AT counts the lines executed
in TRACED_FILES, from 1; 0 means no kill.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from types import FrameType
from typing import Any

from memagent_server.notify import dispatcher
from memagent_server.notify.channel import AlertMessage
from memagent_server.notify.webhook import Webhook
from memagent_server.store import alerts, due_notifications, engine, outbox
from memagent_server.store.engine import Database

TRACED_FILES = {module.__file__ for module in (dispatcher, outbox, alerts, engine)}


class Editing(Webhook):
    """Webhook that also receives edits."""

    can_refresh = True

    def refresh(self, message: AlertMessage) -> dict[str, Any]:
        return self.send(replace(message, to_state="edited"))


def main() -> None:
    database_url, receiver_url = sys.argv[1:]
    for line in sys.stdin:
        verb, kill_at, now = line.split()
        child = os.fork()
        if child == 0:
            run(verb, Database(database_url), receiver_url, int(kill_at), float(now))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run(verb: str, database: Database, receiver_url: str, kill_at: int, now: float) -> None:
    channel = Editing(receiver_url, None, allow_local=True)
    turn = dispatcher.Dispatcher(
        database, due_notifications.ChannelFilter("test"), channel, "http://x", lambda: now
    ).turn

    def deliver() -> None:
        while turn():
            pass

    def open_one() -> None:
        with database.write() as session:
            alert = alerts.open_alert(session, run_id="r", stream_id=None, rule="oom_forecast", severity="warning", state="firing",
                                      step=5, summary="", data={"step": 5}, now=now)  # fmt: skip
            alerts.add_transition(
                session,
                alert,
                from_state="pending",
                to_state="firing",
                reason="",
                now=now,
                channels=["test"],
            )

    with database.read() as session:
        session.connection()  # connecting does not belong to the cycle
    sys.settrace(_killer(kill_at) if kill_at else None)
    {"turn": turn, "deliver": deliver, "open": open_one}[verb]()
    sys.settrace(None)
    database.close()


def _killer(kill_at: int) -> Any:
    lines = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in TRACED_FILES:
            return None
        if event == "line":
            lines += 1
            if lines == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


if __name__ == "__main__":
    main()
