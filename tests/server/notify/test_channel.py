"""Channels over HTTP against a local receiver: requests, and reactions to failures."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading

import pytest

from memagent.wire.messages import Suspect
from memagent_server.notify import CHANNELS, channels, http_client
from memagent_server.notify.alertmanager import Alertmanager
from memagent_server.notify.channel import MAX_RETRY_AFTER_S, DeliveryFailedError, MissingChannel
from memagent_server.notify.discord import DESCRIPTION_LIMIT, TITLE_LIMIT, Discord
from memagent_server.notify.grafana import Grafana
from memagent_server.notify.message_text import plain_text
from memagent_server.notify.pagerduty import PagerDuty
from memagent_server.notify.slack_bot import SlackBot
from memagent_server.notify.slack_webhook import SlackWebhook, blocks
from memagent_server.notify.teams import Teams
from memagent_server.notify.webhook import Webhook
from memagent_server.settings import CHANNEL_NAMES

KINDS = {
    "slack_webhook": lambda url: SlackWebhook(url, allow_local=True),
    "slack_bot": lambda url: SlackBot("xoxb-secret", "C1", base_url=url + "/"),
    "webhook": lambda url: Webhook(url, "secret key", allow_local=True),
    "pagerduty": lambda url: PagerDuty("secret routing key", url=url),
    "alertmanager": lambda url: Alertmanager(url),
    "discord": lambda url: Discord(url, allow_local=True),
    "teams": lambda url: Teams(url, allow_local=True),
    "grafana": lambda url: Grafana(url, "glsa_secret"),
}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


SUSPECT = Suspect(
    kind="list",
    holder="outputs: list of 132",
    file="train.py",
    line=116,
    bytes_per_step=2.0**21,
    confidence=0.9,
    fix="Append a detached copy, and clear the list.",
)


@every_kind
def test_it_sends_the_suspect_with_its_kind_its_confidence_and_the_fix(
    receiver, make, make_message
):
    receiver.answers = [(200, b'{"ok": true, "ts": "1.0", "channel": "C1", "id": 7}', {})]
    make(receiver.url).send(make_message(suspect=SUSPECT))
    body = receiver.requests[0][2].decode()
    assert "train.py:116 keeps 2.0 MiB more each step, held by outputs: list of 132" in body
    assert "(list, 90% sure)" in body and f"Fix: {SUSPECT.fix}" in body


def test_channels_with_fields_send_the_suspect_as_fields(receiver, make_message):
    message = make_message(suspect=SUSPECT)
    Webhook(receiver.url, None, allow_local=True).send(message)
    assert receiver.payload()["suspect"] == {**SUSPECT.to_dict(), "function": None}
    Alertmanager(receiver.url).send(message)
    annotations = receiver.payload()[0]["annotations"]
    assert (annotations["suspect"], annotations["fix"]) == ("train.py:116", SUSPECT.fix)
    PagerDuty("secret routing key", url=receiver.url).send(message)
    details = receiver.payload()["payload"]["custom_details"]
    assert (details["suspect"], details["fix"]) == ("train.py:116", SUSPECT.fix)


def test_it_names_every_channel_in_the_settings():
    assert tuple(CHANNELS) == CHANNEL_NAMES


def test_it_creates_the_channels_of_the_settings(make_settings):
    assert channels(make_settings("sqlite://")) == {}
    settings = make_settings(
        "sqlite://", webhook_url="http://x", discord_webhook_url="http://y", slack_bot_token="xoxb"
    )
    assert list(channels(settings)) == ["webhook", "discord"]


@every_kind
def test_it_retries_a_refused_connection(make, make_message):
    with pytest.raises(DeliveryFailedError) as caught:
        make("http://127.0.0.1:9/secret").send(make_message())
    assert (
        not caught.value.is_final
        and "secret" not in str(caught.value)
        and "could not be reached" in str(caught.value)
    )


@every_kind
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"Retry-After": "999999999"}, MAX_RETRY_AFTER_S),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "-3"}, None),
        ({}, None),
    ],
)
def test_it_reads_retry_after_of_any_response(receiver, make, make_message, headers, seconds):
    receiver.answers = [(429, b'{"ok": false, "error": "ratelimited"}', headers)]
    with pytest.raises(DeliveryFailedError) as caught:
        make(receiver.url + "/secret").send(make_message())
    assert caught.value.retry_after_s == seconds and not caught.value.is_final
    assert "secret" not in str(caught.value)


@every_kind
def test_it_retries_after_a_response_that_is_not_http(make, make_message):
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_answer_garbage, args=(server,))
        thread.start()
        with pytest.raises(DeliveryFailedError) as caught:
            make(f"http://127.0.0.1:{server.getsockname()[1]}/secret").send(make_message())
        thread.join()
    assert not caught.value.is_final and "secret" not in str(caught.value)


def _answer_garbage(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(b"220 mail.example ESMTP\r\n\r\n")


@pytest.mark.parametrize(
    ("kind", "status", "is_final"),
    [
        ("slack_webhook", 404, True), ("slack_webhook", 403, True), ("slack_webhook", 500, False),
        ("webhook", 410, True), ("webhook", 404, False), ("pagerduty", 400, True), ("pagerduty", 502, False),
        ("alertmanager", 400, True), ("discord", 404, True), ("teams", 401, True), ("teams", 502, False),
    ],
)  # fmt: skip
def test_only_final_refusals_are_not_retried(receiver, make_message, kind, status, is_final):
    receiver.answers = [(status, b"no_service", {})]
    with pytest.raises(DeliveryFailedError) as caught:
        KINDS[kind](receiver.url + "/secret").send(make_message())
    assert caught.value.is_final is is_final and str(status) in str(caught.value)


def test_it_follows_no_redirect(receiver, make_message):
    receiver.answers = [(302, b"", {"Location": receiver.url + "/elsewhere"})]
    with pytest.raises(DeliveryFailedError, match="answered 302"):
        Webhook(receiver.url, None, allow_local=True).send(make_message())
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "169.254.169.254",
        "[fe80::1]",
        "0.0.0.0",
        "[::ffff:127.0.0.1]",
        "2130706433",
    ],
)
@pytest.mark.parametrize("kind", [Webhook, SlackWebhook, Discord, Teams])
def test_webhooks_to_this_machine_need_permission(make_message, host, kind):
    channel = kind(f"http://{host}:9/x", None) if kind is Webhook else kind(f"http://{host}:9/x")
    with pytest.raises(DeliveryFailedError, match="MEMAGENT_ALLOW_LOCAL_WEBHOOKS=1"):
        channel.send(make_message())


def test_it_recognizes_local_addresses():
    assert not any(
        map(http_client.is_local, ["10.0.0.7", "192.168.1.1", "8.8.8.8", "2001:4860:4860::8888"])
    )
    assert all(
        map(
            http_client.is_local,
            ["127.8.8.8", "fe80::1%eth0", "::", "224.0.0.1", "::ffff:169.254.1.1"],
        )
    )


@pytest.mark.parametrize(
    "address",
    ["169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "0.1.2.3", "255.255.255.255",
     "::7f00:1", "::ffff:0:7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:0:0:0:0:80ff:fffe", "ff02::1"],
)  # fmt: skip
def test_it_recognizes_metadata_services_and_ipv4_mapped_addresses(address):
    assert http_client.is_local(address)


def test_it_checks_the_address_before_every_post(receiver):
    with pytest.raises(DeliveryFailedError, match="MEMAGENT_ALLOW_LOCAL_WEBHOOKS=1"):
        http_client.send_json(receiver.url, b"{}", service="the service")
    assert receiver.requests == []


def test_it_refuses_a_host_with_any_local_address(monkeypatch, make_message):
    """A name may have several, and the connection may go to any of them."""
    responses = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80))
        for address in ("203.0.113.7", "169.254.169.254")
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: responses)
    with pytest.raises(DeliveryFailedError, match="MEMAGENT_ALLOW_LOCAL_WEBHOOKS=1"):
        Webhook("http://two.example/x", None).send(make_message())


def test_it_connects_to_the_checked_address(receiver, make_message, monkeypatch):
    """A name that resolves to something harmless when asked, and to something else a moment later."""
    port, hosts = int(receiver.url.rpartition(":")[2]), []

    def resolve(host, *_args, **_options):
        hosts.append(host)
        if len(hosts) > 1:
            raise OSError("the second question gets another answer")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    original = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *args, **options: (
        resolve(host) if host == "far.example" else original(host, *args, **options)))  # fmt: skip
    Webhook(f"http://far.example:{port}/x", None, allow_local=True).send(make_message())
    assert hosts == ["far.example"] and receiver.requests[0][1]["Host"] == f"far.example:{port}"


def test_it_signs_time_and_body_of_a_webhook(receiver, make_message):
    Webhook(receiver.url, "the key", allow_local=True, clock=lambda: 1234.5).send(make_message())
    _, headers, body = receiver.requests[0]
    expected = "v1=" + hmac.new(b"the key", b"1234." + body, hashlib.sha256).hexdigest()
    assert (headers["X-Memagent-Timestamp"], headers["X-Memagent-Signature"]) == ("1234", expected)
    assert headers["Idempotency-Key"] == "k3v9:2:test"
    payload = json.loads(body)
    assert payload["run_id"] == "k3v9" and payload["facts"]["cause"] == "leak"
    assert payload["text"] == plain_text(make_message()) and "receipt" not in payload


def test_it_leaves_a_webhook_unsigned_without_a_secret(receiver, make_message):
    Webhook(receiver.url, None, allow_local=True).send(make_message())
    assert "X-Memagent-Signature" not in receiver.requests[0][1]


def test_the_slack_webhook_gets_text_and_blocks(receiver, make_message, faults_of):
    assert SlackWebhook(receiver.url + "/services/T/B/secret", allow_local=True).send(
        make_message()
    ) == {"status": 200}
    payload = receiver.payload()
    assert payload["text"] == plain_text(make_message()) and payload["blocks"] == blocks(
        make_message()
    )
    assert faults_of(payload["blocks"]) == []


def test_pagerduty_has_one_incident_that_a_good_end_resolves(receiver, make_message):
    channel = PagerDuty("the key", url=receiver.url)
    for message in (
        make_message(),
        make_message(severity="critical"),
        make_message(to_state="averted"),
    ):
        channel.send(message)
    events = [receiver.payload(number) for number in range(3)]
    assert [event["event_action"] for event in events] == ["trigger", "trigger", "resolve"]
    assert {event["dedup_key"] for event in events} == {"memagent-k3v9-alert-1"}
    assert (
        all(event["routing_key"] == "the key" for event in events)
        and receiver.requests[0][0] == "/v2/enqueue"
    )
    first = events[0]["payload"]
    assert (first["severity"], first["source"], first["class"]) == (
        "warning",
        "box",
        "oom_forecast",
    )
    assert len(first["summary"]) <= 1024 and "will run out of memory" in first["summary"]
    assert events[1]["payload"]["severity"] == "critical"


@pytest.mark.parametrize("state", ["oom", "lost_contact"])
def test_a_death_stays_open_in_pagerduty(receiver, make_message, state):
    PagerDuty("the key", url=receiver.url).send(make_message(to_state=state))
    assert (
        receiver.payload()["event_action"] == "trigger"
        and receiver.payload()["payload"]["severity"] == "critical"
    )


def test_an_ended_incident_is_not_reopened(receiver, make_message):
    PagerDuty("the key", url=receiver.url).send(make_message(is_overtaken=True))
    Alertmanager(receiver.url).send(make_message(is_overtaken=True))
    assert receiver.requests == []


def test_discord_messages_are_limited_and_mention_no_one(receiver, make_message):
    message = make_message(run_name="@everyone " + "x" * 400, error="*" * 5000)
    for state in ("firing", "oom"):
        Discord(receiver.url, allow_local=True).send(
            make_message(**{**vars(message), "to_state": state})
        )
        (embed,) = receiver.payload()["embeds"]
        assert len(embed["title"]) <= TITLE_LIMIT and len(embed["description"]) <= DESCRIPTION_LIMIT
        assert receiver.payload()["allowed_mentions"] == {"parse": []}


def test_teams_gets_an_adaptive_card(receiver, make_message):
    Teams(receiver.url, allow_local=True).send(make_message())
    (attachment,) = receiver.payload()["attachments"]
    card = attachment["content"]
    assert (card["type"], card["version"]) == ("AdaptiveCard", "1.4")
    assert (
        "will run out of memory" in card["body"][0]["text"]
        and len(receiver.requests[0][2]) < 28_000
    )
    assert [action["url"] for action in card["actions"]] == [
        "http://box/runs/k3v9", "http://box/alerts#alert-1", "http://box/runbooks#oom_forecast",
    ]  # fmt: skip


def test_a_deleted_channel_has_advice(make_message):
    with pytest.raises(DeliveryFailedError, match="configure it again") as caught:
        MissingChannel().send(make_message())
    assert not caught.value.is_final


def test_grafana_has_one_annotation_from_the_warning_to_the_end(receiver, make_message):
    receiver.answers = [
        (200, b'{"message": "Annotation added", "id": 7}', {}),
        (200, b'{"message": "Annotation patched"}', {}),
    ]
    channel = Grafana(receiver.url, "glsa_secret")
    receipt = channel.send(make_message(opened_at=100.0, at=100.0))
    channel.send(make_message(opened_at=100.0, at=160.0, to_state="oom", receipt=receipt))
    (opened, headers, _), (ended, _, _) = receiver.requests
    assert (opened, ended) == ("/api/annotations", "/api/annotations/7")
    assert headers["Authorization"] == "Bearer glsa_secret"
    first, last = receiver.payload(0), receiver.payload(1)
    assert (first["time"], last["time"], last["timeEnd"]) == (100_000, 100_000, 160_000)
    assert {"memagent", "run:k3v9", "firing"} <= set(first["tags"]) and "oom" in last["tags"]
    assert "will run out of memory" in first["text"] and "ran out of memory" in last["text"]
    assert "http://box/runs/k3v9" in last["text"]


def test_a_response_without_json_is_reported(receiver, make_message):
    receiver.answers = [(200, b"<html>", {})]
    with pytest.raises(DeliveryFailedError, match="is it Grafana"):
        Grafana(receiver.url, "glsa_secret").send(make_message())
