"""E-mail over SMTP: one message a transition, threaded by topic.

The Message-ID is made of the dedup key: a message that is sent twice is one message for mail programs that look.
"""

from __future__ import annotations

import hashlib
import smtplib
import ssl
from datetime import datetime, timezone
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from memagent_server.notify.channel import (
    AlertMessage,
    Channel,
    DeliveryFailedError,
    parts_of_address,
)
from memagent_server.notify.chart_image import ChartImage
from memagent_server.notify.message_text import cut, headline, plain_text
from memagent_server.settings import Settings

TIMEOUT_S = 10.0
SUBJECT_LIMIT = 200


def from_settings(settings: Settings) -> Channel | None:
    if not settings.smtp_url or not settings.email_to or not settings.email_from:
        return None
    return Email(settings.smtp_url, settings.email_from, settings.email_to)


class Email(Channel):
    """`url`: `smtp://user:password@host:587` (STARTTLS where the server offers it, and required for a password) or `smtps://`."""

    def __init__(
        self, url: str, sender: str, recipients: tuple[str, ...], *, draw: ChartImage | None = None
    ) -> None:
        parts = urlsplit(url)
        self._is_tls = parts.scheme == "smtps"
        self._host, self._port = parts.hostname or "", parts.port or (465 if self._is_tls else 587)
        self._user, self._password = unquote(parts.username or ""), unquote(parts.password or "")
        self._sender, self._recipients = sender, recipients
        self._draw = draw or ChartImage()
        self.secrets = parts_of_address(url)
        self.wants_curve = self._draw.is_possible

    def send(self, story: AlertMessage) -> dict[str, Any]:
        message = self._message(story)
        try:
            with self._connected() as server:
                refused = server.send_message(message)
        except smtplib.SMTPRecipientsRefused as error:
            codes = sorted({code for code, _ in error.recipients.values()})
            raise DeliveryFailedError(
                f"the mail server refused every recipient ({codes}): check MEMAGENT_EMAIL_TO",
                is_final=all(500 <= code < 600 for code in codes),
            ) from None
        except smtplib.SMTPAuthenticationError as error:
            raise DeliveryFailedError(
                f"the mail server refused the login ({error.smtp_code}): check MEMAGENT_SMTP_URL",
                is_final=True,
            ) from None
        except smtplib.SMTPResponseException as error:
            said = (
                error.smtp_error.decode("utf-8", "replace")
                if isinstance(error.smtp_error, bytes)
                else error.smtp_error
            )
            raise DeliveryFailedError(
                f"the mail server answered {error.smtp_code}: {cut(str(said), 200)}",
                is_final=500 <= error.smtp_code < 600,
            ) from None
        except (smtplib.SMTPException, ssl.SSLError, OSError) as error:
            raise DeliveryFailedError(
                f"the mail server could not be reached: {type(error).__name__}"
            ) from None
        return {
            "refused_recipients": len(refused),
            "root": story.receipt.get("root") or message["Message-ID"],
        }

    def _message(self, story: AlertMessage) -> EmailMessage:
        message = EmailMessage()
        message["Subject"] = cut(" ".join(f"[memagent] {headline(story)}".split()), SUBJECT_LIMIT)
        message["From"], message["To"] = self._sender, ", ".join(self._recipients)
        message["Date"] = format_datetime(datetime.fromtimestamp(story.at, timezone.utc))
        domain = self._sender.rpartition("@")[2].strip("> ")
        message["Message-ID"] = (
            f"<{hashlib.sha256(story.dedup_key.encode()).hexdigest()[:40]}@{domain}>"
        )
        message["Auto-Submitted"] = "auto-generated"
        root = story.receipt.get("root")
        if root:
            message["In-Reply-To"] = message["References"] = root
        message.set_content(f"{plain_text(story)}\n\nSnooze or acknowledge: {story.alert_url}\n")
        picture = self._draw.of(story)
        if picture is not None:
            message.add_attachment(picture, maintype="image", subtype="png", filename="memory.png")
        return message

    def _connected(self) -> smtplib.SMTP:
        context = ssl.create_default_context()
        if self._is_tls:
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                self._host, self._port, timeout=TIMEOUT_S, context=context
            )
        else:
            server = smtplib.SMTP(self._host, self._port, timeout=TIMEOUT_S)
        try:
            server.ehlo()
            if not self._is_tls and server.has_extn("starttls"):
                server.starttls(context=context)
                server.ehlo()
            elif not self._is_tls and self._password:
                raise DeliveryFailedError(
                    "the mail server offers no STARTTLS, and a password is not sent in the clear"
                )
            if self._password:
                server.login(self._user, self._password)
        except BaseException:
            server.close()
            raise
        return server
