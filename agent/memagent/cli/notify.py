"""List the configured channels, or send a test message and print the response."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from memagent.cli import say
from memagent.errors import MemagentError
from memagent_server.notify import CHANNELS, channels
from memagent_server.notify.channel import Channel, DeliveryFailedError
from memagent_server.notify.message_data import send_test
from memagent_server.settings import SEVERITIES, Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|test")
    listing = actions.add_parser("list", help="list all channels, and whether they are configured")
    listing.add_argument("--json", action="store_true", help="print JSON")
    test = actions.add_parser("test", help="send a message that is marked as a test")
    test.add_argument(
        "channel",
        metavar="CHANNEL",
        help=f"{', '.join(CHANNELS)}, a name of MEMAGENT_CHANNELS, or all",
    )
    test.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    settings = Settings.from_environ()
    return {"list": _list, "test": _test}[arguments.action](arguments, settings, channels(settings))


def _list(arguments: argparse.Namespace, settings: Settings, configured: dict[str, Channel]) -> int:
    rows = [
        {
            "channel": name,
            "is_set_up": name in configured,
            "least_severity": settings.notify_severities.get(name, SEVERITIES[0]),
        }
        for name in dict.fromkeys((*CHANNELS, *configured))
    ]
    if arguments.json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        state = (
            f"configured, from severity {row['least_severity']}"
            if row["is_set_up"]
            else "not configured"
        )
        print(f"{row['channel']:<14} {state}")
    return 0


def _test(arguments: argparse.Namespace, settings: Settings, configured: dict[str, Channel]) -> int:
    names = list(configured) if arguments.channel == "all" else [arguments.channel]
    if not names or arguments.channel not in (*configured, "all"):
        problem = "No channel is" if not names else f"Channel {arguments.channel} is not"
        raise MemagentError(
            f"{problem} configured: docs/notifications.md lists the settings of each channel."
        )
    results = [_send(name, configured[name], settings) for name in names]
    if arguments.json:
        print(json.dumps(results))
    for result in results:
        if not result["ok"]:
            say(f"{result['channel']}: {result['answer']}")
        elif not arguments.json:
            print(f"{result['channel']}: accepted, {result['answer']}")
    return 0 if all(result["ok"] for result in results) else 1


def _send(name: str, channel: Channel, settings: Settings) -> dict[str, Any]:
    try:
        return {
            "channel": name,
            "ok": True,
            "answer": send_test(channel, settings.public_url, time.time()),
        }
    except DeliveryFailedError as error:
        return {"channel": name, "ok": False, "answer": str(error)}
