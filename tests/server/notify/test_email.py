"""E-mail against a real SMTP server on this machine."""

from __future__ import annotations

import email
import os
import socket
from email.message import EmailMessage
from email.policy import default

import pytest

from memagent.wire.messages import Suspect
from memagent_server.notify.channel import DeliveryFailedError, MemoryCurve
from memagent_server.notify.email import Email

CURVE = MemoryCurve(tuple(range(10)), tuple(range(10)), (None,) * 10)
aiosmtpd = (
    pytest.importorskip("aiosmtpd.controller", reason="needs aiosmtpd")
    if not os.environ.get("CI")
    else None
)
if aiosmtpd is None:
    import aiosmtpd.controller as aiosmtpd


class Mailbox:
    """Handler of a mail server: stores messages, or answers with `refusal`."""

    def __init__(self) -> None:
        self.messages: list[EmailMessage] = []
        self.refusal: str | None = None
        self.refused_recipients: dict[str, str] = {}

    async def handle_RCPT(self, server, session, envelope, address, options):  # noqa: N802 - aiosmtpd's name
        if address in self.refused_recipients:
            return self.refused_recipients[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):  # noqa: N802 - aiosmtpd's name
        if self.refusal:
            return self.refusal
        self.messages.append(email.message_from_bytes(envelope.content, policy=default))
        return "250 OK"


@pytest.fixture
def mailbox():
    return Mailbox()


@pytest.fixture
def smtp(mailbox):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    controller = aiosmtpd.Controller(mailbox, hostname="127.0.0.1", port=port)
    controller.start()
    yield f"smtp://127.0.0.1:{port}"
    controller.stop()


@pytest.fixture
def channel(smtp):
    return Email(smtp, "memagent@example.org", ("ana@example.org", "bo@example.org"))


def test_it_sends_the_whole_message_to_all_recipients(channel, mailbox, make_message):
    channel.send(make_message(curve=CURVE))
    (message,) = mailbox.messages
    assert (
        message["To"] == "ana@example.org, bo@example.org"
        and message["From"] == "memagent@example.org"
    )
    assert message["Subject"].startswith(
        "[memagent] gpt-small will run out of memory in about 420 steps"
    )
    body = message.get_body().get_content()
    assert "30.00 GiB of 40.00 GiB used" in body and "http://box/alerts#alert-1" in body
    (picture,) = message.iter_attachments()
    assert picture.get_content_type() == "image/png" and picture.get_content().startswith(
        b"\x89PNG"
    )


def test_it_threads_by_topic_and_names_a_message_by_its_key(channel, mailbox, make_message):
    receipt = channel.send(make_message())
    receipt = channel.send(make_message(to_state="oom", dedup_key="2", receipt=receipt))
    channel.send(make_message(to_state="oom", dedup_key="2", receipt=receipt, is_repeat=True))
    first, second, repeated = mailbox.messages
    assert second["In-Reply-To"] == second["References"] == first["Message-ID"]
    assert second["Message-ID"] == repeated["Message-ID"] != first["Message-ID"]


def test_a_line_break_in_a_name_adds_no_header(channel, mailbox, make_message):
    channel.send(make_message(run_name="gpt\r\nBcc: everybody@example.org"))
    assert mailbox.messages[0]["Bcc"] is None and "Bcc: everybody" in mailbox.messages[0]["Subject"]


@pytest.mark.parametrize(
    ("answer", "is_final"), [("451 try later", False), ("554 no spam here", True)]
)
def test_only_final_refusals_are_not_retried(channel, mailbox, make_message, answer, is_final):
    mailbox.refusal = answer
    with pytest.raises(DeliveryFailedError, match=answer.replace(" ", ": ", 1)) as caught:
        channel.send(make_message())
    assert caught.value.is_final is is_final


def test_one_accepted_recipient_is_enough(channel, mailbox, make_message):
    mailbox.refused_recipients = {"bo@example.org": "550 nobody of that name"}
    assert channel.send(make_message())["refused_recipients"] == 1
    mailbox.refused_recipients["ana@example.org"] = "550 nobody of that name"
    with pytest.raises(DeliveryFailedError, match="check MEMAGENT_EMAIL_TO") as caught:
        channel.send(make_message())
    assert caught.value.is_final


def test_it_sends_no_password_unencrypted(smtp, mailbox, make_message):
    address = smtp.replace("smtp://", "smtp://ana:the-password@")
    with pytest.raises(DeliveryFailedError, match="STARTTLS") as caught:
        Email(address, "memagent@example.org", ("ana@example.org",)).send(make_message())
    assert "the-password" not in str(caught.value) and mailbox.messages == []


def test_it_retries_a_refused_connection(make_message):
    with pytest.raises(DeliveryFailedError, match="could not be reached") as caught:
        Email("smtp://127.0.0.1:9", "memagent@example.org", ("ana@example.org",)).send(
            make_message()
        )
    assert not caught.value.is_final


def test_it_sends_the_suspect_with_its_kind_its_confidence_and_the_fix(
    mailbox, channel, make_message
):
    suspect = Suspect(
        kind="list", holder="outputs", file="train.py", line=116, confidence=0.9, fix="Clear it."
    )
    channel.send(make_message(suspect=suspect))
    (message,) = mailbox.messages
    body = message.get_body().get_content()
    assert "Suspect: train.py:116, held by outputs (list, 90% sure)" in body
    assert "Fix: Clear it." in body
