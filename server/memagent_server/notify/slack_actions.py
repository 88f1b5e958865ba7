"""Buttons of Slack's messages, by Socket Mode: Slack needs no public address of this server.

1. One worker holds the connection. It's opened again when it breaks, after a pause that doubles
   from RETRY_S to MAX_RETRY_S.
2. An action is stored first, and confirmed to Slack afterwards. If it can't be stored, Slack gets
   no confirmation, and shows a warning next to the button.
3. Then the message is edited: it names the person, and loses the button.
4. A button whose alert is gone, or is over, gets a reply that only that person sees.

All members of the channel may act, like all tokens with scope `read`.

Source: https://docs.slack.dev/apis/events-api/using-socket-mode/
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast, get_args
from urllib.parse import urlsplit

from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.socket_mode import SocketModeClient
from slack_sdk.socket_mode.client import BaseSocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from slack_sdk.socket_mode.response import SocketModeResponse

from memagent_server.notify.channel import DeliveryFailedError, mask
from memagent_server.notify.slack_bot import BoundedClient
from memagent_server.notify.slack_webhook import ACTION_PREFIX
from memagent_server.store.engine import Database
from memagent_server.store.incidents import (
    IncidentAction,
    IncidentClosedError,
    handle_incident,
    lock_incident,
)
from memagent_server.store.models import NotificationRow
from memagent_server.store.outbox import newest_sent, notification_of

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

RETRY_S = 5.0
MAX_RETRY_S = 300.0
PING_S = 5.0
"""Slack closes a connection that doesn't answer for four of these."""
MAX_NAME_LENGTH = 190
MAX_KEY_LENGTH = 200
"""The column's length: memagent makes no longer keys."""
RECEIVE_BYTES = 16 * 1024
"""Of one read. The client can join about a thousand of them into a message."""
_REMEDY = "check MEMAGENT_SLACK_APP_TOKEN (xapp-..., scope connections:write), and Socket Mode"

Refresh = Callable[[NotificationRow], None]
"""Edit the message of a notification, whatever channel it went to."""


@dataclass(frozen=True)
class SlackAction:
    """A pressed button: what to do, the notification it belongs to, and who pressed it where."""

    action: IncidentAction
    dedup_key: str
    by: str
    user: str
    channel: str


def read_action(payload: object) -> SlackAction | None:
    """Return the action in the payload of an interactive request; None for links and other apps."""
    match payload:
        case {
            "type": "block_actions",
            "user": {"id": str(user), **person},
            "channel": {"id": str(channel)},
            "actions": [{"action_id": str(action_id), "value": str(dedup_key)}],
        }:
            action = action_id.removeprefix(ACTION_PREFIX)
            is_ours = action_id.startswith(ACTION_PREFIX) and action in get_args(IncidentAction)
            if not is_ours or not 0 < len(dedup_key) <= MAX_KEY_LENGTH:
                return None
            name = str(person.get("username") or person.get("name") or user)[:MAX_NAME_LENGTH]
            by = f"{name} (Slack)"
            return SlackAction(cast("IncidentAction", action), dedup_key, by, user, channel)
    return None


class SlackActions:
    """The connection to Slack, and what people do by it. `holds` is True for one worker."""

    def __init__(
        self,
        database: Database,
        app_token: str,
        bot_token: str,
        *,
        base_url: str,
        holds: Callable[[], bool],
        refresh: Refresh,
        clock: Callable[[], float],
    ) -> None:
        self._database = database
        self._secrets = (app_token, bot_token)
        self._base_url = base_url
        self._holds = holds
        self._refresh = refresh
        self._clock = clock
        self._connection: _Connection | None = None
        self._failures = 0
        self._retry_at = float("-inf")

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_connected()

    def turn(self) -> bool:
        """Connect if this worker should and isn't; disconnect if it no longer should."""
        if not self._holds():
            self.close()
            return False
        now = self._clock()
        # a longer wait means that the clock was set back
        if self.is_connected or 0.0 < self._retry_at - now <= MAX_RETRY_S:
            return False
        self._connect(now)
        return False

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connect(self, now: float) -> None:
        self.close()
        connection = _Connection(*self._secrets, base_url=self._base_url)
        connection.socket_mode_request_listeners.append(self._respond)
        self._connection = connection
        try:
            connection.connect_to_new_endpoint()
        except SlackApiError as error:
            code = str(error.response.get("error", error.response.status_code))[:100]
            self._fail(now, mask(f"Slack answered {code}: {_REMEDY}", self._secrets))
        except (SlackClientError, DeliveryFailedError, OSError, ValueError) as error:
            self._fail(now, mask(str(error), self._secrets))
        else:
            if not connection.is_connected():
                self._fail(now, "Slack did not accept the connection")
            else:
                self._failures = 0
                # one that ends at once must not be opened again at once
                self._retry_at = now + RETRY_S
                log.info("Slack's buttons are connected")

    def _fail(self, now: float, reason: str) -> None:
        wait_s = min(RETRY_S * 2**self._failures, MAX_RETRY_S)
        self._failures = min(self._failures + 1, 10)
        self._retry_at = now + wait_s
        log.warning("Slack's buttons don't work: %s; retrying in %.0f s", reason, wait_s)

    def _respond(self, client: BaseSocketModeClient, request: SocketModeRequest) -> None:
        """Store an action, confirm it, then show it. Links are confirmed only."""
        action = read_action(request.payload) if request.type == "interactive" else None
        notification, problem = None, None
        try:
            if action is not None:
                notification, problem = self._store(action)
        except Exception:
            log.exception("an action in Slack was not stored")
            return
        client.send_socket_mode_response(SocketModeResponse(envelope_id=request.envelope_id))
        if action is not None and problem is not None:
            self._reply(client, action, problem)
        if notification is not None:
            self._refresh(notification)

    def _store(self, action: SlackAction) -> tuple[NotificationRow | None, str | None]:
        """Return the notification whose message to edit, or what to reply instead."""
        with self._database.write() as session:
            notification = notification_of(session, action.dedup_key)
            incident = lock_incident(session, notification.alert_id) if notification else None
            if notification is None or incident is None:
                return None, "This alert is unknown here. Its run may have been deleted."
            try:
                handle_incident(session, incident, action.action, by=action.by, now=self._clock())
            except IncidentClosedError as error:
                return None, f"This alert is over ({error}), so it cannot be snoozed."
            return newest_sent(session, notification), None

    def _reply(self, client: BaseSocketModeClient, action: SlackAction, problem: str) -> None:
        with suppress(SlackClientError, DeliveryFailedError):
            client.web_client.chat_postEphemeral(
                channel=action.channel, user=action.user, text=problem
            )


class _Connection(SocketModeClient):
    """Slack's client, without its own retries and logs; those of errors quote what a peer sent."""

    def __init__(self, app_token: str, bot_token: str, *, base_url: str) -> None:
        quiet = logging.getLogger(f"{__name__}.client")
        quiet.setLevel(logging.CRITICAL)
        self._allows_plain = urlsplit(base_url).scheme == "http"
        super().__init__(
            app_token,
            logger=quiet,
            web_client=BoundedClient(bot_token, base_url=base_url, retry_handlers=[]),
            auto_reconnect_enabled=False,
            ping_interval=PING_S,
            receive_buffer_size=RECEIVE_BYTES,
            concurrency=1,
        )

    def connect(self) -> None:
        """Connect; errors are in `is_connected`."""
        super().connect()
        session = self.current_session
        if session is not None and session.sock is not None:
            session.sock = cast("ssl.SSLSocket", _EndingSocket(session.sock))

    def close(self) -> None:
        session = self.current_session
        if session is not None and session.sock is not None:
            # the client would wait for a read to time out
            with suppress(OSError):
                session.sock.shutdown(socket.SHUT_RDWR)
        super().close()

    def issue_new_wss_url(self) -> str:
        """Ask Slack for an address. Raises SlackApiError, or ValueError for one without TLS."""
        url = self.web_client.apps_connections_open(app_token=self.app_token)["url"]
        parts = urlsplit(str(url))
        # the client uses TLS on port 443 only
        is_secret = parts.scheme == "wss" and parts.port in (None, 443)
        if not is_secret and not self._allows_plain:
            raise ValueError("Slack's address for the connection has no TLS")
        return str(url)


class _EndingSocket:
    """A socket whose end is an error: Slack's client would read an ended one in a busy loop."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.send = connection.send
        self.shutdown = connection.shutdown
        self.close = connection.close

    def recv(self, size: int) -> bytes:
        received = self._connection.recv(size)
        if not received:
            raise ConnectionResetError("Slack closed the connection")
        return received
