"""Samples in the store become messages, by the worker as `memagent serve` runs it."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from memagent.wire.messages import (
    AdviceItem,
    Batch,
    Chunk,
    Device,
    Event,
    Finish,
    PredictionMessage,
    RunStart,
    SnapshotMessage,
    Suspect,
)
from memagent_server.notify import dispatcher
from memagent_server.store.predictions import add_prediction
from memagent_server.store.runs import finish_run, start_run
from memagent_server.store.samples import add_batch
from memagent_server.store.snapshots import add_snapshot
from memagent_server.worker import run_worker
from tests.waiting import PATIENCE_S, wait_until

GIB, MIB = 2**30, 2**20


@pytest.fixture
def hanging():
    """A far end that takes messages and answers none until `go_on` is set."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            server.has_request.set()
            server.go_on.wait(PATIENCE_S)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.has_request = threading.Event()
    server.go_on = threading.Event()
    server.url = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.go_on.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def work():
    """work(settings): run the worker on a thread until the test is over."""
    stop, threads = threading.Event(), []

    def work(settings) -> None:
        threads.append(threading.Thread(target=run_worker, args=(settings, stop)))
        threads[-1].start()

    yield work
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def leak(
    database, run_id: str, first: int, last: int, seq: int, *, rank: int = 0, world_size: int = 1
) -> None:
    steps, now = list(range(first, last)), time.time()
    columns = {
        "step": steps,
        "time_s": [now - last + step for step in steps],
        "allocated_bytes": [int((10 + 0.02 * step) * GIB) for step in steps],
    }
    device = Device(id="host", kind="host", name="host", limit_bytes=40 * GIB)
    with database.write() as session:
        start_run(
            session,
            RunStart(run_id=run_id, name="gpt", rank=rank, world_size=world_size, devices=[device]),
            now,
        )
        add_batch(
            session,
            run_id,
            Batch(rank=rank, seq=seq, chunks=[Chunk(stream="host", columns=columns)]),
            now,
        )


def die(database, run_id: str, step: int) -> None:
    """The run's last words, with all that a report is made of, and its end."""
    host = {"used_bytes": 40 * GIB - 10 * MIB, "limit_bytes": 40 * GIB}
    components = {"components": {"parameters": 4 * GIB, "activations": 20 * GIB}}
    words = {
        "phase": "backward",
        "asked_bytes": 8 * MIB,
        "free_bytes": 3 * MIB,
        "devices": {"host": host | components},
    }
    suspect = Suspect(
        kind="list", holder="history: list of 412", file="train.py", line=42, fix="Append a number."
    )
    advice = AdviceItem(change="Use bf16", saving_bytes=9 * GIB)
    predicted = PredictionMessage(method="trace", peak_allocated_bytes=12 * GIB, advice=[advice])
    with database.write() as session:
        add_prediction(session, run_id, predicted, time.time())
        add_snapshot(
            session, run_id, SnapshotMessage(method="census", suspects=[suspect]), time.time()
        )
        add_batch(
            session,
            run_id,
            Batch(seq=1, events=[Event(kind="oom", step=step, data=words)]),
            time.time(),
        )
        finish_run(
            session, run_id, Finish(status="oom", step=step, error="OutOfMemoryError"), time.time()
        )


def test_it_reports_a_leak_to_slack_refreshes_the_eta_and_reports_the_end(
    database, make_settings, slack, work, monkeypatch
):
    monkeypatch.setattr(dispatcher, "REFRESH_EVERY_S", 0.1)
    leak(database, "r", 0, 1000, 0)
    work(
        make_settings(
            database.url, slack_bot_token=slack.token, slack_channel=slack.channel, slack_api_url=slack.url,
            public_url="http://box",
        )
    )  # fmt: skip
    wait_until(lambda: slack.roots and slack.roots[0]["files"], "the warning and its picture")
    (root,) = slack.roots
    first = root["text"]
    assert "gpt will run out of memory in about" in first and "http://box/runs/r" in first
    assert root["files"][0]["content"].startswith(b"\x89PNG")
    leak(database, "r", 1000, 1300, 1)
    wait_until(lambda: root["text"] != first, "the ETA moves")
    assert slack.roots == [root]
    with database.write() as session:
        finish_run(
            session, "r", Finish(status="oom", step=1300, error="OutOfMemoryError"), time.time()
        )
    wait_until(lambda: "ran out of memory" in root["text"], "the end")
    wait_until(
        lambda: any("ran out of memory" in reply["text"] for reply in slack.replies(root["ts"])),
        "the end, in the thread",
    )
    assert slack.roots == [root]


def test_a_death_is_reported_in_the_thread_and_to_the_webhook(
    database, make_settings, slack, receiver, work
):
    leak(database, "r", 0, 1000, 0)
    work(
        make_settings(
            database.url, slack_bot_token=slack.token, slack_channel=slack.channel, slack_api_url=slack.url,
            webhook_url=receiver.url, allow_local_webhooks=True,
        )
    )  # fmt: skip
    wait_until(lambda: slack.roots and receiver.requests, "the warning")
    die(database, "r", 1000)
    (root,) = slack.roots
    wait_until(lambda: "ran out of memory" in receiver.payload()["text"], "the end, to the webhook")
    wait_until(
        lambda: any("ran out of memory" in reply["text"] for reply in slack.replies(root["ts"])),
        "the end, in the thread",
    )
    reply = slack.replies(root["ts"])[-1]["text"]
    for words in (
        "8.0 MiB were requested with 3.0 MiB free; 39.99 GiB of 40.00 GiB were used.",
        "It happened in backward, where gradients are created while activations still exist: the peak of most models.",
        "Held: activations 20.00 GiB, everything else 5.98 GiB, parameters 4.00 GiB",
        "Suspect: train.py:42: history: list of 412.",
        "Change: Fix the leak first, at train.py:42. Append a number.",
        "Change: Use bf16 (saves 9.00 GiB, leaving about 31.00 GiB of 40.00 GiB)",
    ):
        assert words in reply and words in receiver.payload()["text"]
        assert words in receiver.payload()["autopsy"] and words not in root["text"]


def test_a_hanging_channel_delays_no_other(database, make_settings, hanging, receiver, slack, work):
    leak(database, "r", 0, 1200, 0)
    work(
        make_settings(
            database.url, slack_webhook_url=hanging.url, webhook_url=receiver.url, slack_bot_token=slack.token,
            slack_channel=slack.channel, slack_api_url=slack.url, allow_local_webhooks=True,
        )
    )  # fmt: skip
    assert hanging.has_request.wait(PATIENCE_S)
    wait_until(lambda: receiver.requests and slack.roots, "the others are notified")
    assert not hanging.go_on.is_set() and "will run out of memory" in receiver.payload()["text"]
    hanging.go_on.set()


def test_all_ranks_of_an_incident_are_one_message(
    database, make_settings, slack, work, monkeypatch
):
    monkeypatch.setattr(dispatcher, "REFRESH_EVERY_S", 0.1)
    for rank in range(4):
        leak(database, "r", 0, 1000, 0, rank=rank, world_size=4)
    settings = make_settings(
        database.url,
        slack_bot_token=slack.token,
        slack_channel=slack.channel,
        slack_api_url=slack.url,
    )
    work(settings)
    wait_until(
        lambda: slack.roots and "4 of 4 ranks (0, 1, 2, 3)" in slack.roots[0]["text"],
        "all ranks in one message",
    )
    with database.write() as session:
        for rank in range(4):
            finish_run(session, "r", Finish(status="completed", step=1000, rank=rank), time.time())
    wait_until(
        lambda: "finished before its memory ran out" in slack.roots[0]["text"],
        "the end of all ranks",
    )
    wait_until(lambda: slack.replies(slack.roots[0]["ts"]), "the end, in the thread")
    assert len(slack.roots) == 1 and len(slack.replies(slack.roots[0]["ts"])) == 1
