"""Further channels, by names of the administrator's: MEMAGENT_CHANNELS.

Each has a kind and an address. It shares the other settings of its kind.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args
from urllib.parse import urlsplit

from memagent.errors import SettingError

SETTING = "MEMAGENT_CHANNELS"
ChannelKind = Literal[
    "slack_bot", "slack_webhook", "webhook", "email", "pagerduty", "alertmanager", "discord",
    "teams", "apprise",
]  # fmt: skip
KINDS: tuple[ChannelKind, ...] = get_args(ChannelKind)
ADDRESSES: Mapping[str, str] = {
    "slack_bot": "slack_channel",
    "slack_webhook": "slack_webhook_url",
    "webhook": "webhook_url",
    "email": "email_to",
    "pagerduty": "pagerduty_routing_key",
    "alertmanager": "alertmanager_url",
    "discord": "discord_webhook_url",
    "teams": "teams_webhook_url",
}
"""The field of the settings that a channel's address replaces."""
PARENTS: Mapping[ChannelKind, str] = {
    "slack_bot": "MEMAGENT_SLACK_BOT_TOKEN",
    "email": "MEMAGENT_SMTP_URL",
}
"""The setting that a kind needs besides an address."""
MAX_CHANNELS = 100
"""Each has a thread in every worker."""
_NAME = r"[a-z][a-z0-9_-]{0,39}"


@dataclass(frozen=True)
class NamedChannel:
    """A channel `name` of a kind; the address may be a secret."""

    name: str
    kind: ChannelKind
    address: str = field(repr=False)

    @property
    def value(self) -> str | tuple[str, ...]:
        """Return the address as the field of the settings has it."""
        return tuple(self.address.split(",")) if self.kind == "email" else self.address


def read_channels(values: Mapping[str, str], reserved: tuple[str, ...]) -> tuple[NamedChannel, ...]:
    """Parse `NAME=KIND:ADDRESS`, separated by spaces or lines. Raises SettingError.

    The error shows no address.
    """
    by_kind: dict[str, ChannelKind] = {kind: kind for kind in KINDS}
    channels: dict[str, NamedChannel] = {}
    for number, part in enumerate(values.get(SETTING, "").split(), start=1):
        # an address may contain both signs
        name, is_named, rest = part.partition("=")
        kind, _, address = rest.partition(":")
        if not is_named or not re.fullmatch(_NAME, name):
            raise SettingError(
                f"{SETTING}, entry {number}: write NAME=KIND:ADDRESS, with a name of up to 40 "
                "letters a to z, digits, - and _"
            )
        if name in reserved or name in channels:
            raise SettingError(f"{SETTING}: the name {name} is taken, choose another")
        if kind not in by_kind:
            raise SettingError(f"{SETTING}, {name}: use a kind of {', '.join(KINDS)}")
        channels[name] = NamedChannel(name, by_kind[kind], address)
        _check(channels[name], values)
    if len(channels) > MAX_CHANNELS:
        raise SettingError(f"{SETTING} has {len(channels)} channels: at most {MAX_CHANNELS}")
    return tuple(channels.values())


def _check(channel: NamedChannel, values: Mapping[str, str]) -> None:
    parent = PARENTS.get(channel.kind)
    if parent is not None and not values.get(parent):
        raise SettingError(f"{SETTING}, {channel.name}: {channel.kind} needs {parent}")
    if channel.kind == "apprise" and importlib.util.find_spec("apprise") is None:
        raise SettingError(f"{SETTING}, {channel.name}: install memagent[apprise]")
    if not _is_address(channel):
        wanted = {
            "email": "e-mail addresses, separated by commas",
            "slack_bot": "the id of a Slack channel",
            "pagerduty": "a routing key",
            "apprise": "an address of apprise's, such as tgram://TOKEN/CHAT",
        }.get(channel.kind, "an http:// or https:// address")
        raise SettingError(f"{SETTING}, {channel.name}: after {channel.kind}: write {wanted}")


def _is_address(channel: NamedChannel) -> bool:
    address = channel.address
    if channel.kind == "email":
        return all(re.fullmatch(r"[^@\s,]+@[^@\s,]+", part) for part in address.split(","))
    if channel.kind in ("slack_bot", "pagerduty"):
        return re.fullmatch(r"[A-Za-z0-9_-]{1,200}", address) is not None
    if channel.kind == "apprise":
        return re.fullmatch(r"[a-z][a-z0-9]*://\S{1,2000}", address) is not None
    # a port beyond 65535 raises when it is read
    try:
        parts = urlsplit(address)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
