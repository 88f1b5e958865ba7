"""SIGKILL of a real worker at each point of a delivery, with a receiver in another process.

The points are numbered as in notify/dispatcher.py. A lock on the database or a receiver that
doesn't respond holds each one open. A second worker then completes the delivery.

1. Before the lease: the database is locked while the worker starts.
2. During the send: the receiver has the message and does not respond.
3. After the send, before the mark: the receiver responds while the database is locked.
4. After the mark.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
import pytest
from sqlalchemy import select, text, update

from memagent.wire.messages import RunStart
from memagent_server.store.alerts import add_transition, open_alert
from memagent_server.store.engine import Database
from memagent_server.store.models import NotificationRow
from memagent_server.store.runs import start_run
from tests.python_fork import ForkedProcess
from tests.waiting import PATIENCE_S, wait_until


class SlowReceiver:
    """A receiver that answers while `may_answer` is set, and keeps (key, is_repeat)."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bool]] = []
        self.may_answer, self.has_request, self.answered = (
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )
        slow = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                slow.messages.append((payload["to_state"], payload["is_repeat"]))
                slow.has_request.set()
                slow.may_answer.wait(PATIENCE_S)
                try:
                    self.send_response(200)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                except OSError:
                    pass  # who asked was killed
                slow.answered.set()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver():
    slow = SlowReceiver()
    yield slow
    slow.close()


@pytest.fixture
def start_worker(database_url, receiver, memagent_fork):
    """start_worker(): a `memagent serve --role worker` process over the database."""
    started: list[ForkedProcess] = []

    def start_worker() -> ForkedProcess:
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith("MEMAGENT_")
        }
        environ |= {
            "MEMAGENT_DATABASE_URL": database_url,
            "MEMAGENT_SECRET_KEY": "for tests",
            "MEMAGENT_WEBHOOK_URL": receiver.url,
            "MEMAGENT_ALLOW_LOCAL_WEBHOOKS": "1",
        }
        command = ("-m", "memagent", "serve", "--role", "worker")
        started.append(memagent_fork.start(*command, env=environ))
        return started[-1]

    yield start_worker
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def database(database_url) -> Iterator[Database]:
    database = Database(database_url)
    now = time.time()
    with database.write() as session:
        start_run(session, RunStart(run_id="r"), now)
        alert = open_alert(session, run_id="r", stream_id=None, rule="oom_forecast", severity="warning", state="firing", step=5,
                           summary="", data={"step": 5}, now=now)  # fmt: skip
        for state in ("firing", "averted"):
            add_transition(
                session,
                alert,
                from_state="pending",
                to_state=state,
                reason="",
                now=now,
                channels=["webhook"],
            )
    yield database
    database.close()


def test_1_killed_before_the_lease(database, receiver, start_worker):
    receiver.may_answer.set()
    with locked(database):
        worker = start_worker()
        wait_for_worker(database, worker)
        worker.kill()
        worker.wait()
        assert receiver.messages == []
    finish(database, start_worker)
    assert receiver.messages == [("firing", False), ("averted", False)]


def test_2_killed_while_sending(database, receiver, start_worker):
    worker = start_worker()
    assert receiver.has_request.wait(PATIENCE_S)
    worker.kill()
    worker.wait()
    assert states(database) == ["leased", "waiting"]
    receiver.may_answer.set()
    finish(database, start_worker)
    assert receiver.messages == [("firing", False), ("firing", True), ("averted", False)]


def test_3_killed_after_the_send_before_the_mark(database, receiver, start_worker):
    worker = start_worker()
    assert receiver.has_request.wait(PATIENCE_S)
    with locked(database):
        receiver.may_answer.set()
        assert receiver.answered.wait(PATIENCE_S)
        time.sleep(0.5)  # it would have marked it by now
        worker.kill()
        worker.wait()
    assert states(database) == ["leased", "waiting"]
    finish(database, start_worker)
    assert receiver.messages == [("firing", False), ("firing", True), ("averted", False)]


def test_4_killed_after_the_mark(database, receiver, start_worker):
    worker = start_worker()
    receiver.may_answer.set()
    wait_until(lambda: "sent" in states(database), "the first is marked")
    worker.kill()
    worker.wait()
    finish(database, start_worker)
    assert [state for state, _ in receiver.messages if state == "firing"] == ["firing"]
    assert receiver.messages[-1][0] == "averted"


@contextmanager
def locked(database: Database) -> Iterator[None]:
    """Stop other writers of notifications."""
    with database.write() as session:
        if not database.is_sqlite:
            session.execute(text("LOCK TABLE notifications IN EXCLUSIVE MODE"))
        yield


def wait_for_worker(database: Database, worker: ForkedProcess) -> None:
    """Wait until the worker waits for the lock. PostgreSQL lists it; SQLite shows the open file."""
    if database.is_sqlite:
        path = database.engine.url.database
        opened = psutil.Process(worker.pid).open_files
        wait_until(lambda: path in {file.path for file in opened()}, "the worker opens the file")
        time.sleep(0.5)
        assert worker.poll() is None
        return
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )

    def is_waiting() -> bool:
        with database.read() as session:
            return bool(session.scalar(waiting))

    wait_until(is_waiting, "the worker waits for the lock")


def finish(database: Database, start_worker) -> None:
    """Let the lease run out, and another worker deliver what is left."""
    with database.write() as session:
        session.execute(
            update(NotificationRow)
            .where(NotificationRow.state == "leased")
            .values(leased_until=0.0)
        )
    start_worker()
    wait_until(lambda: set(states(database)) == {"sent"}, "everything is sent")


def states(database: Database) -> list[str]:
    with database.read() as session:
        return list(session.scalars(select(NotificationRow.state).order_by(NotificationRow.id)))
