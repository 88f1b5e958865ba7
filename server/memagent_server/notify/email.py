"""E-mail over SMTP: one mail per transition, threaded by topic.

The Message-ID is derived from the dedup key: mail programs that check it show a repeat once.
"""

from __future__ import annotations

import hashlib
import smtplib
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from memagent.wire.deadline import Deadline, watch
from memagent_server.notify.channel import (
    AlertMessage,
    Channel,
    DeliveryFailedError,
    Receipt,
    secret_parts,
)
from memagent_server.notify.chart_image import ChartImage
from memagent_server.notify.message_text import headline, plain_text, truncate
from memagent_server.settings import Settings

TIMEOUT_S = 10.0
"""Silence after which a mail server hangs."""
EXCHANGE_TIMEOUT_S = 30.0
"""For a whole mail, from greeting to goodbye."""
SUBJECT_LIMIT = 200
RESPONSE_LIMIT = 200


def from_settings(settings: Settings) -> Channel | None:
    if not settings.smtp_url or not settings.email_to or not settings.email_from:
        return None
    return Email(settings.smtp_url, settings.email_from, settings.email_to)


class Email(Channel):
    """`url` is `smtps://...` or `smtp://user:password@host:587`.

    STARTTLS is used if the server offers it, and required for a password.
    """

    folds = True
    follows_up = True

    def __init__(
        self, url: str, sender: str, recipients: tuple[str, ...], *, draw: ChartImage | None = None
    ) -> None:
        parts = urlsplit(url)
        self._is_tls = parts.scheme == "smtps"
        self._host = parts.hostname or ""
        self._port = parts.port or (465 if self._is_tls else 587)
        self._user = unquote(parts.username or "")
        self._password = unquote(parts.password or "")
        self._sender = sender
        self._recipients = recipients
        self._chart = draw or ChartImage()
        self.secrets = secret_parts(url)
        self.wants_curve = self._chart.is_possible

    def send(self, message: AlertMessage) -> Receipt:
        mail = self._compose(message)
        deadline = Deadline(EXCHANGE_TIMEOUT_S)
        try:
            with deadline:
                refused = self._transmit(mail)
        except (smtplib.SMTPException, ssl.SSLError, OSError) as error:
            if deadline.is_over:  # what smtplib has read is cut off: no code to rely on
                text = f"the mail server could not be reached within {EXCHANGE_TIMEOUT_S:g} s"
                raise DeliveryFailedError(text) from None
            raise _delivery_error(error) from None
        root = message.receipt.get("root") or str(mail["Message-ID"])
        return {"refused_recipients": len(refused), "root": root}

    def _compose(self, message: AlertMessage) -> EmailMessage:
        mail = EmailMessage()
        subject = " ".join(f"[memagent] {headline(message)}".split())
        mail["Subject"] = truncate(subject, SUBJECT_LIMIT)
        mail["From"] = self._sender
        mail["To"] = ", ".join(self._recipients)
        mail["Date"] = format_datetime(datetime.fromtimestamp(message.at, timezone.utc))
        domain = self._sender.rpartition("@")[2].strip("> ")
        digest = hashlib.sha256(message.dedup_key.encode()).hexdigest()[:40]
        mail["Message-ID"] = f"<{digest}@{domain}>"
        mail["Auto-Submitted"] = "auto-generated"
        root = message.receipt.get("root")
        if root:
            mail["In-Reply-To"] = root
            mail["References"] = root
        is_digest = message.to_state == "digest"
        footer = "" if is_digest else f"\n\nSnooze or acknowledge: {message.alert_url}"
        mail.set_content(f"{plain_text(message)}{footer}\n")
        image = None if message.folded else self._chart.render(message)
        if image is not None:
            mail.add_attachment(image, maintype="image", subtype="png", filename="memory.png")
        return mail

    def _transmit(self, mail: EmailMessage) -> Mapping[str, object]:
        """Send a mail and return the refused recipients by address. Raises what smtplib raises."""
        server = self._connect()
        try:
            refused = server.send_message(mail)
            with suppress(smtplib.SMTPException, OSError):  # the mail is accepted, goodbye or not
                server.quit()
        finally:
            server.close()
        return refused

    def _connect(self) -> smtplib.SMTP:
        context = ssl.create_default_context()
        server: smtplib.SMTP
        if self._is_tls:
            server = _WatchedSmtps(self._host, self._port, timeout=TIMEOUT_S, context=context)
        else:
            server = _WatchedSmtp(self._host, self._port, timeout=TIMEOUT_S)
        try:
            server.ehlo()
            if not self._is_tls and server.has_extn("starttls"):
                server.starttls(context=context)
                server.ehlo()
            elif not self._is_tls and self._password:
                raise DeliveryFailedError(
                    "the mail server offers no STARTTLS, and a password is not sent unencrypted"
                )
            if self._password:
                server.login(self._user, self._password)
        except BaseException:
            server.close()
            raise
        return server


class _WatchedSmtp(smtplib.SMTP):
    """A connection that obeys the deadline of its thread."""

    def _get_socket(self, *arguments: Any) -> socket.socket:
        connection: socket.socket = super()._get_socket(*arguments)  # type: ignore[misc]
        watch(connection)
        return connection


class _WatchedSmtps(smtplib.SMTP_SSL):
    """The same under TLS."""

    def _get_socket(self, *arguments: Any) -> socket.socket:
        connection: socket.socket = super()._get_socket(*arguments)  # type: ignore[misc]
        watch(connection)
        return connection


def _delivery_error(error: Exception) -> DeliveryFailedError:
    """Describe an SMTP error; a 5xx code means that retrying is pointless."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        codes = sorted({code for code, _ in error.recipients.values()})
        return DeliveryFailedError(
            f"the mail server refused every recipient ({codes}): check MEMAGENT_EMAIL_TO",
            is_final=all(500 <= code < 600 for code in codes),
        )
    if isinstance(error, smtplib.SMTPAuthenticationError):
        return DeliveryFailedError(
            f"the mail server refused the login ({error.smtp_code}): check MEMAGENT_SMTP_URL",
            is_final=True,
        )
    if isinstance(error, smtplib.SMTPResponseException):
        response = error.smtp_error
        text = response.decode("utf-8", "replace") if isinstance(response, bytes) else str(response)
        return DeliveryFailedError(
            f"the mail server answered {error.smtp_code}: {truncate(text, RESPONSE_LIMIT)}",
            is_final=500 <= error.smtp_code < 600,
        )
    return DeliveryFailedError(f"the mail server could not be reached: {type(error).__name__}")
