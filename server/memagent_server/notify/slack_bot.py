"""Slack by bot token: one message an alert, edited in place as things change, and each change in its thread.

A message that can no longer be edited (deleted, or older than the workspace allows) is left alone, and a new one is posted.
"""

from __future__ import annotations

from http.client import HTTPException
from typing import Any

from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError, SlackClientError

from memagent_server.notify.channel import DeliveryFailedError, Story, retry_after_s
from memagent_server.notify.slack_message import blocks, escape, headline, plain_text

TIMEOUT_S = 10
_NEVER = ("invalid_auth", "not_authed", "account_inactive", "token_revoked", "channel_not_found", "not_in_channel", "is_archived",
          "missing_scope", "msg_too_long", "invalid_blocks")  # fmt: skip

_NOT_EDITABLE = ("message_not_found", "cant_update_message", "edit_window_closed")


class SlackBot:
    """`base_url` is Slack's Web API; tests bring their own."""

    def __init__(self, token: str, channel: str, *, base_url: str = "https://slack.com/api/") -> None:
        self._client = WebClient(token, base_url=base_url, timeout=TIMEOUT_S)
        self._channel = channel

    def send(self, story: Story) -> dict[str, Any]:
        message: dict[str, Any] = {"text": escape(plain_text(story)), "blocks": blocks(story)}
        ts, channel = story.receipt.get("ts"), story.receipt.get("channel", self._channel)
        try:
            if ts is None or not self._edit(channel, ts, message):
                answer = self._client.chat_postMessage(channel=self._channel, **message)
                return {"ts": answer["ts"], "channel": answer["channel"]}
            self._client.chat_postMessage(channel=channel, thread_ts=ts, text=escape(headline(story)))
        except SlackApiError as error:
            code = _code(error)
            raise DeliveryFailedError(
                f"Slack answered {code}",
                retry_after_s=retry_after_s(error.response.headers),
                is_final=code in _NEVER,
            ) from None
        except (SlackClientError, HTTPException, OSError) as error:
            raise DeliveryFailedError(f"Slack could not be reached: {type(error).__name__}") from None
        return {"ts": ts, "channel": channel}

    def _edit(self, channel: str, ts: str, message: dict[str, Any]) -> bool:
        """Whether the message could be edited. Raises SlackApiError for what editing has nothing to do with."""
        try:
            self._client.chat_update(channel=channel, ts=ts, **message)
        except SlackApiError as error:
            if _code(error) in _NOT_EDITABLE:
                return False
            raise
        return True


def _code(error: SlackApiError) -> str:
    """Slack's name for what went wrong, or the HTTP status where it gave none."""
    return str(error.response.get("error", error.response.status_code))
