"""Slack by bot token: one message a topic, edited in place as things change; escalation, outcome and pictures go into its thread.

1. The first chapter of a topic is posted. Slack may have taken one that was never marked as sent: a repeat looks for it first,
   by the message's metadata (scope `channels:history`), and posts again where it may not look.
2. Later chapters edit that message, then answer in its thread; the report of a death is long, and in the answer only. What people
   must act on (an escalation, a reminder, a death) is shown in the channel as well, because an edit calls nobody.
3. A message that can no longer be edited (deleted, or older than the workspace allows) is left alone, and a new one is posted.
4. Between chapters `refresh` edits the message as the ETA moves.
5. A picture that could not be uploaded is no reason to send anything twice: it is logged and left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from http.client import HTTPException
from typing import Any

from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError, SlackClientError

from memagent_server.notify.channel import AlertMessage, Channel, DeliveryFailedError, retry_after_s
from memagent_server.notify.chart_image import ChartImage
from memagent_server.notify.message_text import headline
from memagent_server.notify.slack_message import blocks, short_text, text
from memagent_server.settings import Settings

log = logging.getLogger(__name__)

TIMEOUT_S = 10
BETWEEN_MESSAGES_S = 1.0
"""Slack takes about one message a second in a channel (docs: rate limits)."""
CLOCKS_APART_S = 60.0
"""How far Slack's clock and ours may differ."""
EVENT_TYPE = "memagent_notification"

_WELL = ("averted", "finished")
_NEVER = ("invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired", "channel_not_found", "not_in_channel",
          "is_archived", "missing_scope", "msg_too_long", "invalid_blocks", "restricted_action")  # fmt: skip
_NOT_EDITABLE = ("message_not_found", "cant_update_message", "edit_window_closed")
_WHAT_TO_DO = {
    "invalid_auth": "check MEMAGENT_SLACK_BOT_TOKEN",
    "not_authed": "check MEMAGENT_SLACK_BOT_TOKEN",
    "token_revoked": "install the app again and set MEMAGENT_SLACK_BOT_TOKEN",
    "account_inactive": "install the app again and set MEMAGENT_SLACK_BOT_TOKEN",
    "channel_not_found": "MEMAGENT_SLACK_CHANNEL must be the channel's id (C...), and the bot invited to private ones",
    "not_in_channel": "invite the bot to the channel: /invite @memagent",
    "is_archived": "the channel is archived: set MEMAGENT_SLACK_CHANNEL to another",
    "missing_scope": "give the app the scope chat:write (and files:write for pictures)",
}


def from_settings(settings: Settings) -> Channel | None:
    if not settings.slack_bot_token or not settings.slack_channel:
        return None
    return SlackBot(
        settings.slack_bot_token, settings.slack_channel, base_url=settings.slack_api_url
    )


class SlackBot(Channel):
    """`base_url` is Slack's Web API; tests bring their own. `sleep` keeps the pace between two messages."""

    can_refresh = True

    def __init__(
        self,
        token: str,
        channel: str,
        *,
        base_url: str = "https://slack.com/api/",
        draw: ChartImage | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        # the outbox tries again, and keeps that over a crash: the client must not do so by itself
        self._client = WebClient(token, base_url=base_url, timeout=TIMEOUT_S, retry_handlers=[])
        self._channel, self._sleep = channel, sleep
        self._draw = draw or ChartImage()
        self._spoke_at = float("-inf")
        self.secrets = (token,)
        self.wants_curve = self._draw.is_possible

    def send(self, story: AlertMessage) -> dict[str, Any]:
        return self._guarded(lambda: self._send(story))

    def refresh(self, story: AlertMessage) -> dict[str, Any]:
        return self._guarded(lambda: self._refresh(story))

    def _send(self, story: AlertMessage) -> dict[str, Any]:
        ts, channel = story.receipt.get("ts"), story.receipt.get("channel", self._channel)
        if ts is not None and story.is_overtaken:
            self._answer(story, channel, ts)
            return dict(story.receipt)
        if ts is None or not self._edit(replace(story, autopsy=()), channel, ts):
            posted = self._posted_before(story) if story.is_repeat else None
            posted = posted or self._post(channel=self._channel, **_message(story))
            ts, channel = posted["ts"], posted["channel"]
        else:
            self._answer(story, channel, ts)
        self._show_curve(story, channel, ts)
        return {"ts": ts, "channel": channel}

    def _refresh(self, story: AlertMessage) -> dict[str, Any]:
        ts = story.receipt.get("ts")
        if ts is not None:
            self._edit(story, story.receipt["channel"], ts)
        return dict(story.receipt)

    def _edit(self, story: AlertMessage, channel: str, ts: str) -> bool:
        """Whether the message could be edited. Raises SlackApiError for what editing has nothing to do with."""
        self._keep_pace()
        try:
            self._client.chat_update(channel=channel, ts=ts, **_message(story))
        except SlackApiError as error:
            if _code(error) in _NOT_EDITABLE:
                return False
            raise
        return True

    def _answer(self, story: AlertMessage, channel: str, ts: str) -> None:
        """The chapter in the thread, once."""
        if story.is_repeat and self._posted_before(story, channel, ts) is not None:
            return
        self._post(
            channel=channel,
            thread_ts=ts,
            text=short_text(story),
            reply_broadcast=story.to_state not in _WELL,
            metadata=_metadata(story),
        )

    def _post(self, **arguments: Any) -> dict[str, Any]:
        self._keep_pace()
        answer = self._client.chat_postMessage(**arguments, unfurl_links=False)
        return {"ts": answer["ts"], "channel": answer["channel"]}

    def _posted_before(
        self, story: AlertMessage, channel: str | None = None, ts: str | None = None
    ) -> dict[str, Any] | None:
        """What an attempt that was cut short posted, if the token may look."""
        channel = channel or self._channel
        options: dict[str, Any] = {
            "limit": 50,
            "include_all_metadata": True,
            "oldest": str(story.at - CLOCKS_APART_S),
        }
        try:
            if ts is None:
                found = self._client.conversations_history(channel=channel, **options)
            else:
                found = self._client.conversations_replies(channel=channel, ts=ts, **options)
        except SlackApiError as error:
            log.info("Slack does not show what was posted (%s): it may come twice", _code(error))
            return None
        for message in found["messages"]:
            payload = message.get("metadata", {}).get("event_payload", {})
            if payload.get("dedup_key") == story.dedup_key:
                return {"ts": message["ts"], "channel": channel}
        return None

    def _show_curve(self, story: AlertMessage, channel: str, ts: str) -> None:
        picture = self._draw.of(story)
        if picture is None:
            return
        try:
            self._client.files_upload_v2(
                content=picture, filename="memory.png", title=headline(story)[:150], alt_txt=headline(story)[:150],
                channel=channel, thread_ts=ts,
            )  # fmt: skip
        except (SlackApiError, SlackClientError, HTTPException, OSError) as error:
            reason = _code(error) if isinstance(error, SlackApiError) else type(error).__name__
            log.warning("Slack did not take the picture of run %s: %s", story.run_id, reason)

    def _keep_pace(self) -> None:
        wait = self._spoke_at + BETWEEN_MESSAGES_S - time.monotonic()
        if wait > 0:
            self._sleep(wait)
        self._spoke_at = time.monotonic()

    def _guarded(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            return work()
        except SlackApiError as error:
            code = _code(error)
            advice = f": {_WHAT_TO_DO[code]}" if code in _WHAT_TO_DO else ""
            raise DeliveryFailedError(
                f"Slack answered {code}{advice}",
                retry_after_s=retry_after_s(error.response.headers),
                is_final=code in _NEVER,
            ) from None
        except (SlackClientError, HTTPException, OSError) as error:
            raise DeliveryFailedError(
                f"Slack could not be reached: {type(error).__name__}"
            ) from None


def _message(story: AlertMessage) -> dict[str, Any]:
    return {"text": text(story), "blocks": blocks(story), "metadata": _metadata(story)}


def _metadata(story: AlertMessage) -> dict[str, Any]:
    return {
        "event_type": EVENT_TYPE,
        "event_payload": {"dedup_key": story.dedup_key, "run_id": story.run_id},
    }


def _code(error: SlackApiError) -> str:
    """Slack's name for what went wrong, or the HTTP status where it gave none."""
    return str(error.response.get("error", error.response.status_code))
