"""Channels against local receivers that speak the far end's protocol, and the words that they carry."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

from memagent_server.notify.channel import LONGEST_RETRY_AFTER_S, DeliveryFailedError, Story
from memagent_server.notify.slack_bot import SlackBot
from memagent_server.notify.slack_message import HEADER_LIMIT, SECTION_LIMIT, blocks, plain_text
from memagent_server.notify.slack_webhook import SlackWebhook
from memagent_server.notify.webhook import Webhook

GIB = 2**30
FACTS = {
    "step": 1000, "level": "warning", "cause": "leak", "eta_step": 1420.0, "eta_low": 1300.0, "eta_high": 1600.0, "eta_s": 1500.0,
    "used_bytes": 30 * GIB, "limit_bytes": 40 * GIB, "growth_bytes_per_step": 2.0**24, "growing_since_step": 40, "oom_probability": 0.9,
}  # fmt: skip
STORY = Story(
    alert_id=1, transition_id=2, dedup_key="2:slack", rule="oom_forecast", severity="warning", from_state="pending", to_state="firing",
    reason="", at=2000.0, step=1000, first_step=1000, opened_at=2000.0, facts=FACTS, run_id="k3v9", run_name="gpt-small",
    project="nlp", run_url="http://box/runs/k3v9", host="box", rank=1, world_size=4, device_name="NVIDIA A100",
    predicted_peak_bytes=20 * GIB, observed_peak_bytes=30 * GIB,
)  # fmt: skip


class Receiver:
    """Answers with the next of `answers` (status, body, headers), then with `usual`; keeps (path, headers, body)."""

    def __init__(self, usual: bytes = b"ok") -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[tuple[int, bytes, dict[str, str]]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append((self.path, dict(self.headers), body))
                status, answer, headers = receiver.answers.pop(0) if receiver.answers else (200, usual, {})
                self.send_response(status)
                for name, value in {
                    "Content-Type": "application/json",
                    **headers,
                    "Content-Length": str(len(answer)),
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def slack_api():
    receiver = Receiver(b'{"ok": true, "ts": "17.42", "channel": "C1"}')
    yield receiver
    receiver.close()


def test_the_text_tells_the_whole_story():
    text = plain_text(STORY)
    for words in (
        "gpt-small will run out of memory in about 420 steps (25 min, between 18 min and 36 min)",
        "run k3v9", "project nlp", "rank 1 of 4, NVIDIA A100", "on box", "30.00 GiB of 40.00 GiB used",
        "Growing by 16.0 MiB a step since step 40", "Predicted peak 20.00 GiB, observed so far 30.00 GiB (1.5x)",
        "Cause: leak.", "What to change:", "loss.item()", "http://box/runs/k3v9",
    ):  # fmt: skip
        assert words in text


@pytest.mark.parametrize("state", ["oom", "finished", "averted", "lost_contact"])
def test_an_outcome_says_how_early_the_warning_was(state):
    text = plain_text(replace(STORY, from_state="firing", to_state=state, step=1400, at=3500.0, error="MemoryError: x"))
    assert "First warning at step 1,000, 400 steps (25 min) before" in text and "What to change" not in text


def test_an_unforeseen_death_says_so():
    assert "There was no warning before" in plain_text(replace(STORY, rule="oom", to_state="oom"))


def test_slacks_limits_and_control_characters_are_kept():
    found = blocks(replace(STORY, run_name="<!channel> & " + "x" * 500, project="<script>" * 600, world_size=1))
    assert len(found[0]["text"]["text"]) <= HEADER_LIMIT
    assert len(found[1]["elements"][0]["text"]) <= SECTION_LIMIT and "&lt;script&gt;" in found[1]["elements"][0]["text"]
    assert all(len(block["text"]["text"]) <= SECTION_LIMIT for block in found if block["type"] == "section")


def test_a_webhook_gets_text_and_blocks(receiver):
    assert SlackWebhook(receiver.url + "/services/T/B/secret").send(STORY) == {}
    payload = json.loads(receiver.requests[0][2])
    assert payload["text"] == plain_text(STORY) and payload["blocks"] == blocks(STORY)


@pytest.mark.parametrize(
    ("answer", "retry_after_s", "is_final"),
    [
        ((429, b"rate_limited", {"Retry-After": "7"}), 7.0, False),
        ((500, b"oops", {}), None, False),
        ((404, b"no_service", {}), None, True),
        ((403, b"action_prohibited", {}), None, True),
    ],
)
def test_what_slacks_webhook_refuses_is_told_without_its_address(receiver, answer, retry_after_s, is_final):
    receiver.answers = [answer]
    with pytest.raises(DeliveryFailedError) as caught:
        SlackWebhook(receiver.url + "/services/T/B/secret").send(STORY)
    assert (caught.value.retry_after_s, caught.value.is_final) == (retry_after_s, is_final)
    assert "secret" not in str(caught.value) and str(answer[0]) in str(caught.value)


@pytest.mark.parametrize("channel", [SlackWebhook("http://127.0.0.1:9/secret"), SlackBot("xoxb-secret", "C1", base_url="http://127.0.0.1:9/"),
                                     Webhook("http://127.0.0.1:9/secret", "key")])  # fmt: skip
def test_a_far_end_that_is_away_is_worth_another_try(channel):
    with pytest.raises(DeliveryFailedError) as caught:
        channel.send(STORY)
    assert not caught.value.is_final and "secret" not in str(caught.value)


def test_the_bot_posts_once_then_edits_and_answers_in_the_thread(slack_api):
    bot = SlackBot("xoxb-1", "C1", base_url=slack_api.url + "/api/")
    receipt = bot.send(STORY)
    assert receipt == {"ts": "17.42", "channel": "C1"}
    assert bot.send(replace(STORY, to_state="oom", from_state="firing", receipt=receipt)) == receipt
    assert [path for path, _, _ in slack_api.requests] == [
        "/api/chat.postMessage",
        "/api/chat.update",
        "/api/chat.postMessage",
    ]
    last = slack_api.requests[2][2].decode()
    fields = json.loads(last) if last.startswith("{") else {name: values[0] for name, values in parse_qs(last).items()}
    assert fields["thread_ts"] == "17.42" and "died of out-of-memory" in fields["text"]


@pytest.mark.parametrize(
    ("answer", "retry_after_s", "is_final"),
    [
        ((429, b'{"ok": false, "error": "ratelimited"}', {"Retry-After": "3"}), 3.0, False),
        ((200, b'{"ok": false, "error": "invalid_auth"}', {}), None, True),
        ((200, b'{"ok": false, "error": "internal_error"}', {}), None, False),
    ],
)
def test_what_the_bot_is_refused_is_told_without_its_token(slack_api, answer, retry_after_s, is_final):
    slack_api.answers = [answer]
    with pytest.raises(DeliveryFailedError) as caught:
        SlackBot("xoxb-secret", "C1", base_url=slack_api.url + "/api/").send(STORY)
    assert (caught.value.retry_after_s, caught.value.is_final) == (retry_after_s, is_final)
    assert "xoxb" not in str(caught.value)


@pytest.mark.parametrize("refusal", ["message_not_found", "cant_update_message", "edit_window_closed"])
def test_what_cannot_be_edited_any_more_is_told_by_a_new_message(slack_api, refusal):
    slack_api.answers = [
        (200, json.dumps({"ok": False, "error": refusal}).encode(), {}),
        (200, b'{"ok": true, "ts": "18.1", "channel": "C1"}', {}),
    ]
    bot = SlackBot("xoxb-1", "C1", base_url=slack_api.url + "/api/")
    outcome = replace(STORY, to_state="oom", from_state="firing", receipt={"ts": "17.42", "channel": "C1"})
    assert bot.send(outcome) == {"ts": "18.1", "channel": "C1"}
    assert [path for path, _, _ in slack_api.requests] == ["/api/chat.update", "/api/chat.postMessage"]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"Retry-After": "999999999"}, LONGEST_RETRY_AFTER_S),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "-3"}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("kind", ["webhook", "bot", "json"])
def test_how_long_to_wait_is_read_from_any_answer(receiver, kind, headers, seconds):
    receiver.answers = [(429, b'{"ok": false, "error": "ratelimited"}', headers)]
    channel = {
        "webhook": SlackWebhook(receiver.url),
        "bot": SlackBot("xoxb-1", "C1", base_url=receiver.url + "/"),
        "json": Webhook(receiver.url, "key"),
    }[kind]
    with pytest.raises(DeliveryFailedError) as caught:
        channel.send(STORY)
    assert caught.value.retry_after_s == seconds and not caught.value.is_final


@pytest.mark.parametrize("kind", ["webhook", "bot", "json"])
def test_an_answer_that_is_no_http_is_worth_another_try(kind):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/secret/"
        thread = threading.Thread(target=_answer_garbage, args=(server,))
        thread.start()
        channel = {
            "webhook": SlackWebhook(address),
            "bot": SlackBot("xoxb-secret", "C1", base_url=address),
            "json": Webhook(address, "key"),
        }[kind]
        with pytest.raises(DeliveryFailedError) as caught:
            channel.send(STORY)
        thread.join()
    assert not caught.value.is_final and "secret" not in str(caught.value)


def _answer_garbage(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(b"220 mail.example ESMTP\r\n\r\n")


def test_the_last_step_is_not_counted():
    text = plain_text(
        replace(STORY, facts={**FACTS, "eta_step": 1000.6, "eta_low": 1000.4, "eta_high": 1001.0, "eta_s": 3.0})
    )
    assert text.startswith("gpt-small will run out of memory in the next step (3 s")


def test_a_json_webhook_is_signed_and_says_which_change_it_is(receiver):
    Webhook(receiver.url, "the key").send(STORY)
    _, headers, body = receiver.requests[0]
    expected = "sha256=" + hmac.new(b"the key", body, hashlib.sha256).hexdigest()
    assert headers["X-Memagent-Signature"] == expected and headers["Idempotency-Key"] == "2:slack"
    payload = json.loads(body)
    assert payload["run_id"] == "k3v9" and payload["facts"]["cause"] == "leak" and payload["text"] == plain_text(STORY)
