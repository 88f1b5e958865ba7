"""Slack by bot token: one message per topic, edited in place, with a thread for what follows.

1. The first message of a topic is posted. Slack may have accepted one that was never marked as
   sent. A repeat looks for it first, by its metadata (scope `channels:history`). If it isn't
   allowed to look, it posts again and says that it may be a repeat.
2. Later messages of the topic edit that one, then reply in its thread. The long OOM report is in
   the reply only. An escalation, a reminder or a death is shown in the channel as well: edits don't
   notify.
3. If a message can't be edited any more (deleted, or too old), a new one is posted.
4. `refresh` edits the message while the ETA moves.
5. A failed upload of a chart is logged. It's no reason to send a message twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.request import Request

from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.web.file_upload_v2_result import FileUploadV2Result

from memagent_server.notify.channel import (
    AlertMessage,
    Channel,
    DeliveryFailedError,
    Receipt,
    retry_after_s,
)
from memagent_server.notify.chart_image import ChartImage
from memagent_server.notify.http_client import exchange
from memagent_server.notify.message_text import RESOLVED_STATES, headline
from memagent_server.notify.slack_webhook import HEADER_LIMIT, Pace, blocks, short_text, text
from memagent_server.schemas.base import JsonObject
from memagent_server.settings import Settings

log = logging.getLogger(__name__)

MAX_RESPONSE_BYTES = 4 * 2**20
"""Enough for the history of a channel."""
MAX_CLOCK_SKEW_S = 60.0
"""Between Slack's clock and the server's."""
EVENT_TYPE = "memagent_notification"

FINAL_ERRORS = (
    "invalid_auth",
    "not_authed",
    "account_inactive",
    "token_revoked",
    "token_expired",
    "channel_not_found",
    "not_in_channel",
    "is_archived",
    "missing_scope",
    "msg_too_long",
    "invalid_blocks",
    "restricted_action",
)
_NOT_EDITABLE = ("message_not_found", "cant_update_message", "edit_window_closed")
_REMEDIES = {
    "invalid_auth": "check MEMAGENT_SLACK_BOT_TOKEN",
    "not_authed": "check MEMAGENT_SLACK_BOT_TOKEN",
    "token_revoked": "reinstall the app and set MEMAGENT_SLACK_BOT_TOKEN",
    "account_inactive": "reinstall the app and set MEMAGENT_SLACK_BOT_TOKEN",
    "channel_not_found": "MEMAGENT_SLACK_CHANNEL must be the channel's id (C...); "
    "invite the bot to private channels",
    "not_in_channel": "invite the bot to the channel: /invite @memagent",
    "is_archived": "the channel is archived: set MEMAGENT_SLACK_CHANNEL to another",
    "missing_scope": "give the app the scope chat:write (and files:write for charts)",
}


def from_settings(settings: Settings) -> Channel | None:
    if not settings.slack_bot_token or not settings.slack_channel:
        return None
    return SlackBot(
        settings.slack_bot_token,
        settings.slack_channel,
        base_url=settings.slack_api_url,
        can_act=settings.slack_app_token is not None,
    )


class SlackBot(Channel):
    """`base_url` is Slack's Web API; `sleep` keeps the interval between two messages.

    `can_act`: messages have buttons that act on the alert, see `slack_actions`.
    """

    can_refresh = True

    def __init__(
        self,
        token: str,
        channel: str,
        *,
        base_url: str = "https://slack.com/api/",
        can_act: bool = False,
        draw: ChartImage | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        # No retries by the client: the outbox retries, also after a crash.
        self._client = BoundedClient(token, base_url=base_url, retry_handlers=[])
        self._channel = channel
        self._can_act = can_act
        self._pace = Pace(sleep)
        self._chart = draw or ChartImage()
        self._can_search = True
        self.secrets = (token,)
        self.wants_curve = self._chart.is_possible

    def send(self, message: AlertMessage) -> Receipt:
        with _delivery_errors():
            ts, channel = message.receipt.get("ts"), message.receipt.get("channel", self._channel)
            if ts is not None and message.is_overtaken:
                self._reply(message, channel, ts)
                return dict(message.receipt)
            # the long report is in the reply only
            if ts is not None and self._edit(replace(message, autopsy=()), channel, ts):
                self._reply(message, channel, ts)
            else:
                posted = self._find_posted(message) if message.is_repeat else None
                posted = posted or self._post(
                    channel=self._channel, **self._content(self._marked(message))
                )
                ts, channel = posted["ts"], posted["channel"]
            self._upload_chart(message, channel, ts)
            return {"ts": ts, "channel": channel}

    def refresh(self, message: AlertMessage) -> Receipt:
        ts = message.receipt.get("ts")
        if ts is not None:
            with _delivery_errors():
                self._edit(message, message.receipt.get("channel", self._channel), ts)
        return dict(message.receipt)

    def _edit(self, message: AlertMessage, channel: str, ts: str) -> bool:
        """Edit a message; return False if it can't be edited any more. Raises SlackApiError."""
        self._pace.wait()
        try:
            content = self._content(replace(message, is_repeat=False))
            self._client.chat_update(channel=channel, ts=ts, **content)
        except SlackApiError as error:
            if _code(error) in _NOT_EDITABLE:
                return False
            raise
        return True

    def _reply(self, message: AlertMessage, channel: str, ts: str) -> None:
        """Reply in the thread, once."""
        if message.is_repeat and self._find_posted(message, channel, ts) is not None:
            return
        self._post(
            channel=channel,
            thread_ts=ts,
            text=short_text(self._marked(message)),
            reply_broadcast=message.to_state not in RESOLVED_STATES,
            metadata=_metadata(message),
        )

    def _post(self, **arguments: Any) -> JsonObject:
        self._pace.wait()
        response = self._client.chat_postMessage(**arguments, unfurl_links=False)
        return {"ts": response["ts"], "channel": response["channel"]}

    def _find_posted(
        self, message: AlertMessage, channel: str | None = None, ts: str | None = None
    ) -> JsonObject | None:
        """Find the post of an interrupted attempt, if the token may read the channel."""
        channel = channel or self._channel
        options: JsonObject = {
            "limit": 50,
            "include_all_metadata": True,
            "oldest": str(message.at - MAX_CLOCK_SKEW_S),
        }
        try:
            if ts is None:
                response = self._client.conversations_history(channel=channel, **options)
            else:
                response = self._client.conversations_replies(channel=channel, ts=ts, **options)
            self._can_search = True
        except SlackApiError as error:
            self._can_search = False
            log.info("Slack refused the history (%s): a message may appear twice", _code(error))
            return None
        for post in response["messages"]:
            payload = post.get("metadata", {}).get("event_payload", {})
            if payload.get("dedup_key") == message.dedup_key:
                return {"ts": post["ts"], "channel": channel}
        return None

    def _content(self, message: AlertMessage) -> JsonObject:
        return {
            "text": text(message),
            "blocks": blocks(message, can_act=self._can_act),
            "metadata": _metadata(message),
        }

    def _marked(self, message: AlertMessage) -> AlertMessage:
        """Return a message that says that it may be a repeat only if the search for one failed."""
        return replace(message, is_repeat=message.is_repeat and not self._can_search)

    def _upload_chart(self, message: AlertMessage, channel: str, ts: str) -> None:
        image = self._chart.render(message)
        if image is None:
            return
        title = headline(message)[:HEADER_LIMIT]
        try:
            self._client.files_upload_v2(
                content=image,
                filename="memory.png",
                title=title,
                alt_txt=title,
                channel=channel,
                thread_ts=ts,
            )
        except (SlackApiError, SlackClientError, DeliveryFailedError) as error:
            reason = _code(error) if isinstance(error, SlackApiError) else type(error).__name__
            log.warning("Slack did not accept the chart of run %s: %s", message.run_id, reason)


class BoundedClient(WebClient):
    """Slack's client on the HTTP client of all channels, with its deadline and its bound."""

    def _perform_urllib_http_request_internal(self, url: str, req: Request) -> JsonObject:
        body = req.data if isinstance(req.data, bytes) else b""
        response = exchange(
            "POST",
            url,
            body,
            {name: str(text) for name, text in req.header_items()},
            service="Slack",
            allow_local=True,
            max_bytes=MAX_RESPONSE_BYTES,
        )
        return {"status": response.status, "headers": response.headers, "body": response.text}

    def _upload_file(self, *, url: str, data: bytes, **_: Any) -> FileUploadV2Result:
        headers = {"Content-Type": "application/octet-stream"}
        response = exchange("POST", url, data, headers, service="Slack", allow_local=True)
        return FileUploadV2Result(status=response.status, body=response.text)


@contextmanager
def _delivery_errors() -> Iterator[None]:
    """Turn errors of the client into DeliveryFailedError."""
    try:
        yield
    except SlackApiError as error:
        code = _code(error)
        remedy = f": {_REMEDIES[code]}" if code in _REMEDIES else ""
        raise DeliveryFailedError(
            f"Slack answered {code}{remedy}",
            retry_after_s=retry_after_s(error.response.headers),
            is_final=code in FINAL_ERRORS,
        ) from None
    except SlackClientError as error:
        reason = type(error).__name__
        raise DeliveryFailedError(f"Slack could not be reached: {reason}") from None


def _metadata(message: AlertMessage) -> JsonObject:
    payload = {"dedup_key": message.dedup_key, "run_id": message.run_id}
    return {"event_type": EVENT_TYPE, "event_payload": payload}


def _code(error: SlackApiError) -> str:
    """Return Slack's error code, or the HTTP status if there is none."""
    return str(error.response.get("error", error.response.status_code))
