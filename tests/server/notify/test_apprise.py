"""Services by apprise: a real HTTP endpoint that accepts, refuses, drips, or isn't there."""

from __future__ import annotations

import threading

import pytest

from memagent.errors import SettingError
from memagent_server.notify import channels
from memagent_server.notify.channel import DeliveryFailedError
from memagent_server.settings import Settings
from memagent_server.settings.channels import NamedChannel

apprise_channel = pytest.importorskip("memagent_server.notify.apprise_channel")
AppriseChannel = apprise_channel.AppriseChannel


@pytest.fixture
def channel(receiver):
    return AppriseChannel(receiver.url.replace("http://", "json://") + "/hook-of-ana")


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "warning"),
        ({"severity": "critical"}, "failure"),
        ({"to_state": "oom"}, "failure"),
        ({"to_state": "averted"}, "success"),
        ({"to_state": "test"}, "info"),
    ],
)
def test_a_message_arrives_with_title_text_and_kind(channel, receiver, make_message, changes, kind):
    assert channel.send(make_message(**changes)) == {"accepted": True}
    payload = receiver.payload()
    assert receiver.requests[0][0] == "/hook-of-ana" and payload["type"] == kind
    assert kind == "info" or "gpt-small" in payload["title"]
    assert "http://box/runs/k3v9" in payload["message"]


def test_markup_in_a_name_stays_text(channel, receiver, make_message):
    channel.send(make_message(run_name="<b>*x*</b> \\n"))
    assert "<b>*x*</b> \\n" in receiver.payload()["title"]


def test_a_refusal_and_an_absent_service_are_errors_without_the_address(
    channel, receiver, make_message
):
    receiver.answers = [(500, b"no", {})]
    for far in (channel, AppriseChannel("json://127.0.0.1:9/hook-of-ana")):
        with pytest.raises(DeliveryFailedError, match="did not accept") as caught:
            far.send(make_message())
        assert "hook-of-ana" not in str(caught.value) and not caught.value.is_final


def test_a_service_that_does_not_answer_is_given_up(channel, make_message, monkeypatch):
    monkeypatch.setattr(apprise_channel, "EXCHANGE_TIMEOUT_S", 0.0)
    with pytest.raises(DeliveryFailedError, match="within 0 s"):
        channel.send(make_message())


def test_an_exchange_that_never_ends_costs_one_thread(channel, make_message, monkeypatch):
    is_over = threading.Event()
    monkeypatch.setattr(apprise_channel, "EXCHANGE_TIMEOUT_S", 0.01)
    monkeypatch.setattr(channel._service, "notify", lambda **_: is_over.wait(60))
    with pytest.raises(DeliveryFailedError, match="did not answer apprise"):
        channel.send(make_message())
    for _ in range(5):
        with pytest.raises(DeliveryFailedError, match="has not ended the exchange"):
            channel.send(make_message())
    assert sum(thread.name == "apprise" for thread in threading.enumerate()) == 1
    is_over.set()
    channel._thread.join(60)
    monkeypatch.undo()
    assert channel.send(make_message()) == {"accepted": True}


def test_an_address_that_apprise_does_not_know_is_final(make_message):
    with pytest.raises(DeliveryFailedError, match="does not know") as caught:
        AppriseChannel("nosuchservice://x").send(make_message())
    assert caught.value.is_final


def test_it_is_a_kind_of_named_channels(tmp_path, make_settings):
    read = Settings.from_environ(
        {"XDG_DATA_HOME": str(tmp_path), "MEMAGENT_CHANNELS": "ana=apprise:ntfy://secret-topic"}
    )
    assert read.channels == (NamedChannel("ana", "apprise", "ntfy://secret-topic"),)
    ((name, channel),) = channels(read).items()
    assert name == "ana" and any("secret-topic" in secret for secret in channel.secrets)
    with pytest.raises(SettingError, match="an address of apprise's") as caught:
        Settings.from_environ(
            {"XDG_DATA_HOME": str(tmp_path), "MEMAGENT_CHANNELS": "ana=apprise:secret"}
        )
    assert "secret" not in str(caught.value)
