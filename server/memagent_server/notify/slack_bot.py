"""Slack by bot token: one message an alert, edited in place as things change, and the outcome in its thread."""

from __future__ import annotations

from typing import Any

from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError, SlackClientError

from memagent_server.notify.channel import DeliveryFailedError, Story
from memagent_server.notify.slack_message import blocks, escape, headline, plain_text

TIMEOUT_S = 10
_NEVER = ("invalid_auth", "not_authed", "account_inactive", "token_revoked", "channel_not_found", "not_in_channel", "is_archived",
          "missing_scope", "msg_too_long", "invalid_blocks")  # fmt: skip


class SlackBot:
    """`base_url` is Slack's Web API; tests bring their own."""

    def __init__(self, token: str, channel: str, *, base_url: str = "https://slack.com/api/") -> None:
        self._client = WebClient(token, base_url=base_url, timeout=TIMEOUT_S)
        self._channel = channel

    def send(self, story: Story) -> dict[str, Any]:
        message: dict[str, Any] = {"text": escape(plain_text(story)), "blocks": blocks(story)}
        ts, channel = story.receipt.get("ts"), story.receipt.get("channel", self._channel)
        try:
            if ts is None:
                answer = self._client.chat_postMessage(channel=self._channel, **message)
                return {"ts": answer["ts"], "channel": answer["channel"]}
            self._client.chat_update(channel=channel, ts=ts, **message)
            self._client.chat_postMessage(channel=channel, thread_ts=ts, text=escape(headline(story)))
        except SlackApiError as error:
            code = str(error.response.get("error", error.response.status_code))
            retry_after = error.response.headers.get("Retry-After")
            raise DeliveryFailedError(
                f"Slack answered {code}",
                retry_after_s=float(retry_after) if retry_after else None,
                is_final=code in _NEVER,
            ) from None
        except (SlackClientError, OSError) as error:
            raise DeliveryFailedError(f"Slack could not be reached: {type(error).__name__}") from None
        return {"ts": ts, "channel": channel}
