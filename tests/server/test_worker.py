"""The worker's loops in `memagent serve`: a hanging Slack, a missing database, and the shutdown."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from memagent.wire.messages import Batch, Chunk, Device, RunStart
from memagent_server import worker
from memagent_server.store import migrate
from memagent_server.store.alerts import list_alerts
from memagent_server.store.engine import Database
from memagent_server.store.runs import start_run
from memagent_server.store.samples import add_batch
from tests.waiting import PATIENCE_S, wait_until

GIB = 2**30


@pytest.fixture
def hanging_slack():
    """A webhook that answers only after `go_on` is set; `asked` is set by the first message."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            server.has_request.set()
            server.go_on.wait(PATIENCE_S)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.has_request, server.go_on = threading.Event(), threading.Event()
    server.url = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.go_on.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def work():
    """work(settings): run the worker on a thread until the end of the test."""
    stop, threads = threading.Event(), []

    def work(settings) -> None:
        threads.append(threading.Thread(target=worker.run_worker, args=(settings, stop)))
        threads[-1].start()

    yield work
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def add_leaking_run(database, run_id: str) -> None:
    steps, now = list(range(1200)), time.time()
    columns = {
        "step": steps,
        "time_s": [now - 1200 + step for step in steps],
        "allocated_bytes": [int((10 + 0.02 * step) * GIB) for step in steps],
    }
    device = Device(id="host", kind="host", name="host", limit_bytes=40 * GIB)
    with database.write() as session:
        start_run(session, RunStart(run_id=run_id, devices=[device]), now)
        add_batch(
            session, run_id, Batch(seq=0, chunks=[Chunk(stream="host", columns=columns)]), now
        )


def alerts(database) -> dict[str, dict]:
    with database.read() as session:
        return {alert.run_id: alert for alert in list_alerts(session).alerts}


def test_a_hanging_slack_does_not_delay_the_next_warning(
    database, make_settings, hanging_slack, work
):
    add_leaking_run(database, "first")
    work(
        make_settings(database.url, slack_webhook_url=hanging_slack.url, allow_local_webhooks=True)
    )
    assert hanging_slack.has_request.wait(PATIENCE_S)
    add_leaking_run(database, "second")
    wait_until(
        lambda: "second" in alerts(database), "the second alert, while Slack hangs on the first"
    )
    assert all(alert.notifications[0].state != "sent" for alert in alerts(database).values())
    hanging_slack.go_on.set()
    wait_until(
        lambda: all(alert.notifications[0].state == "sent" for alert in alerts(database).values()),
        "both are sent",
    )


def test_it_waits_for_a_missing_database(tmp_path, make_settings, work, monkeypatch, caplog):
    monkeypatch.setattr(worker, "RETRY_AFTER_S", 0.1)
    url = f"sqlite:///{tmp_path}/later/memagent.db"
    work(make_settings(url))
    wait_until(
        lambda: "the worker is waiting: the database does not answer" in caplog.text,
        "it misses its database",
    )
    assert "Traceback" not in caplog.text
    (tmp_path / "later").mkdir()
    database = Database(url)
    migrate.upgrade(database)
    add_leaking_run(database, "r")
    wait_until(lambda: "r" in alerts(database), "the alert")
    database.close()
