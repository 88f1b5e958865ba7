"""Any service that apprise knows, by its address: one message per transition.

https://github.com/caronc/apprise lists the services. Apprise says whether a service has accepted a
message, not why it hasn't: a refusal is retried. It follows its own rules for addresses, so that
`MEMAGENT_ALLOW_LOCAL_WEBHOOKS` doesn't apply.
"""

from __future__ import annotations

import threading

import apprise

from memagent_server.notify.channel import (
    AlertMessage,
    Channel,
    DeliveryFailedError,
    Receipt,
    secret_parts,
)
from memagent_server.notify.message_text import RESOLVED_STATES, headline, plain_text, truncate

EXCHANGE_TIMEOUT_S = 30.0
"""For a whole message: apprise limits the wait for each byte, but not for all of them."""
TITLE_LIMIT = 200
BODY_LIMIT = 4_000


class AppriseChannel(Channel):
    """`url` is an address of apprise's, such as `tgram://TOKEN/CHAT`."""

    folds = True
    follows_up = True

    def __init__(self, url: str) -> None:
        self._service = apprise.Apprise()
        self._is_known = self._service.add(url)
        self.secrets = secret_parts(url)
        self._thread: threading.Thread | None = None

    def send(self, message: AlertMessage) -> Receipt:
        if not self._is_known:
            raise DeliveryFailedError(
                "apprise does not know this address: see its list of services", is_final=True
            )
        if self._thread is not None and self._thread.is_alive():
            # a service that never ends an exchange would cost a thread for each attempt
            raise DeliveryFailedError("the service has not ended the exchange before this one")
        accepted: list[bool] = []
        # the thread ends with the service's last byte, however late: joining it is limited
        self._thread = threading.Thread(
            target=lambda: accepted.append(self._notify(message)), daemon=True, name="apprise"
        )
        self._thread.start()
        self._thread.join(EXCHANGE_TIMEOUT_S)
        if not accepted:
            raise DeliveryFailedError(
                f"the service did not answer apprise within {EXCHANGE_TIMEOUT_S:g} s"
            )
        if not accepted[0]:
            raise DeliveryFailedError("the service did not accept the message, by apprise")
        return {"accepted": True}

    def _notify(self, message: AlertMessage) -> bool:
        try:
            return bool(
                self._service.notify(
                    title=truncate(headline(message), TITLE_LIMIT),
                    body=truncate(plain_text(message), BODY_LIMIT),
                    notify_type=_kind(message),
                    # a run's name must not be read as markup, or its newlines as escapes
                    body_format=apprise.NotifyFormat.TEXT,
                )
            )
        except Exception:  # noqa: BLE001 - a bug of one of many services, and its text may hold secrets
            return False


def _kind(message: AlertMessage) -> apprise.NotifyType:
    if message.to_state in RESOLVED_STATES:
        return apprise.NotifyType.SUCCESS
    if message.to_state in ("test", "digest"):
        return apprise.NotifyType.INFO
    is_critical = message.severity == "critical" or message.to_state in ("oom", "lost_contact")
    return apprise.NotifyType.FAILURE if is_critical else apprise.NotifyType.WARNING
