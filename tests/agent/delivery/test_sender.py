"""The sender against a real HTTP server on this machine that answers as servers do on bad days."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from memagent.delivery.buffer import Drops
from memagent.delivery.http import HttpTransport
from memagent.delivery.parcel import parcel
from memagent.delivery.sender import Sender
from memagent.guard import Guard
from memagent.wire.codec import decode
from memagent.wire.messages import Batch, RunStart

REPLY = {"accepted": 1, "next_seq": 1}


class FarEnd:
    """Answers each request with the next of `answers` (status, body, headers), then with 200; keeps (path, headers, body)."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes, dict[str, str]]] = []
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.delay_s = 0.0
        far_end = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(far_end.delay_s)
                far_end.requests.append((self.path, dict(self.headers), body))
                status, answer, headers = (
                    far_end.answers.pop(0) if far_end.answers else (200, json.dumps(REPLY).encode(), {})
                )
                try:
                    self.send_response(status)
                    for name, value in {**headers, "Content-Length": str(len(answer))}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(answer)
                except OSError:
                    pass  # the sender did not wait

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def batches(self) -> list[int]:
        return [decode(body, Batch).seq for path, _, body in self.requests if path.endswith("/batches")]


@pytest.fixture
def far_end():
    far_end = FarEnd()
    yield far_end
    far_end.server.shutdown()
    far_end.server.server_close()


@pytest.fixture
def drops():
    return Drops()


@pytest.fixture
def make_sender(drops):
    replies = []

    def make(url: str, token: str | None = None) -> Sender:
        start = parcel("r1", RunStart(run_id="r1"))
        sender = Sender(HttpTransport(url, token), start, drops, Guard(raise_errors=True), replies.append)
        sender.replies = replies
        return sender

    return make


def batch(seq: int, samples: int = 10):
    return parcel("r1", Batch(seq=seq), samples=samples)


def test_it_starts_the_run_then_sends_in_order(far_end, make_sender, drops):
    sender = make_sender(far_end.url, token="hush")
    for seq in range(5):
        sender.put(batch(seq))
    sender.close(5)
    assert [path for path, _, _ in far_end.requests][:2] == ["/api/v1/runs", "/api/v1/runs/r1/batches"]
    assert far_end.batches() == [0, 1, 2, 3, 4] and not drops
    assert {headers["Authorization"] for _, headers, _ in far_end.requests} == {"Bearer hush"}
    assert len(sender.replies) == 5


@pytest.mark.parametrize(
    "answer",
    [(500, b"oops", {}), (503, b"", {"Retry-After": "0"}), (200, b"<html>a proxy</html>", {}), (401, b"{}", {})],
)
def test_it_sends_the_same_bytes_again_after_a_failure(far_end, make_sender, drops, answer, capsys):
    far_end.answers = [(201, b"{}", {}), answer]
    sender = make_sender(far_end.url)
    sender.put(batch(0))
    wait_for(lambda: len(sender.replies) == 1)
    sender.close(5)
    bodies = [body for path, _, body in far_end.requests if path.endswith("/batches")]
    assert len(bodies) == 2 and bodies[0] == bodies[1] and not drops
    assert "training goes on" in capsys.readouterr().err


def test_a_rejected_batch_is_counted_and_the_next_ones_go_on(far_end, make_sender, drops, capsys):
    far_end.answers = [(201, b"{}", {}), (422, b'{"detail": "chunks[0]: bad"}', {})]
    sender = make_sender(far_end.url)
    sender.put(batch(0, samples=7))
    sender.put(batch(1))
    sender.close(5)
    assert far_end.batches() == [0, 1] and drops == {"rejected": 7}
    assert "chunks[0]: bad" in capsys.readouterr().err


def test_a_server_that_forgot_the_run_is_told_again(far_end, make_sender, drops):
    far_end.answers = [(201, b"{}", {}), (404, b"{}", {})]
    sender = make_sender(far_end.url)
    sender.put(batch(0))
    sender.close(5)
    paths = [path.rpartition("/")[2] for path, _, _ in far_end.requests]
    assert paths == ["runs", "batches", "runs", "batches"] and not drops


def test_at_the_deadline_what_is_left_is_counted(make_sender, drops, capsys):
    sender = make_sender("http://127.0.0.1:9")  # discard: nobody listens
    sender.put(batch(0, samples=3))
    sender.put(batch(1, samples=4))
    wait_for(lambda: sender.is_failing)
    sender.close(0.5)
    assert drops == {"not_delivered_at_exit": 7}
    assert "gave up delivering 7 samples" in capsys.readouterr().err


def test_a_slow_server_holds_up_nobody(far_end, make_sender, drops):
    far_end.delay_s = 3.0
    sender = make_sender(far_end.url)
    for seq in range(100):
        sender.put(batch(seq))
    assert far_end.batches() == []  # all were put while the server was still busy with the first
    sender.close(0.2)
    assert drops["not_delivered_at_exit"] == 1000


def test_the_token_is_in_no_message(make_sender, capsys):
    sender = make_sender("http://127.0.0.1:9", token="hush-hush")
    sender.put(batch(0))
    wait_for(lambda: sender.is_failing)
    sender.close(0.1)
    assert "hush-hush" not in capsys.readouterr().err


def wait_for(condition, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
