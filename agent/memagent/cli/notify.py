"""List the channels that are set up, or send one of them a test message and print what it answered."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from memagent.cli import say
from memagent.errors import MemagentError
from memagent_server.notify import CHANNELS, channels
from memagent_server.notify.channel import Channel, DeliveryFailedError
from memagent_server.notify.sample_message import send_test
from memagent_server.settings import SEVERITIES, Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|test")
    listing = actions.add_parser("list", help="the channels, and which of them are set up")
    listing.add_argument("--json", action="store_true", help="print JSON")
    test = actions.add_parser("test", help="send a message that is marked as a test")
    test.add_argument(
        "channel",
        metavar="CHANNEL",
        choices=[*CHANNELS, "all"],
        help=f"{', '.join(CHANNELS)}, or all",
    )
    test.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    settings = Settings.from_environ()
    return {"list": _list, "test": _test}[arguments.action](arguments, settings, channels(settings))


def _list(arguments: argparse.Namespace, settings: Settings, found: dict[str, Channel]) -> int:
    rows = [
        {
            "channel": name,
            "is_set_up": name in found,
            "least_severity": settings.notify_severities.get(name, SEVERITIES[0]),
        }
        for name in CHANNELS
    ]
    if arguments.json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        state = (
            f"set up, hears of {row['least_severity']} and worse"
            if row["is_set_up"]
            else "not set up"
        )
        print(f"{row['channel']:<14} {state}")
    return 0


def _test(arguments: argparse.Namespace, settings: Settings, found: dict[str, Channel]) -> int:
    wanted = list(found) if arguments.channel == "all" else [arguments.channel]
    if not wanted or arguments.channel not in (*found, "all"):
        what = "no channel" if not wanted else f"the channel {arguments.channel}"
        verb = "is set up" if not wanted else "is not set up"
        raise MemagentError(f"{what} {verb}: docs/notifications.md says which settings make one")
    results = [_try(name, found[name], settings) for name in wanted]
    if arguments.json:
        print(json.dumps(results))
    for result in results:
        if not result["ok"]:
            say(f"{result['channel']}: {result['answer']}")
        elif not arguments.json:
            print(f"{result['channel']}: taken, {result['answer']}")
    return 0 if all(result["ok"] for result in results) else 1


def _try(name: str, channel: Channel, settings: Settings) -> dict[str, Any]:
    try:
        return {
            "channel": name,
            "ok": True,
            "answer": send_test(channel, settings.public_url, time.time()),
        }
    except DeliveryFailedError as error:
        return {"channel": name, "ok": False, "answer": str(error)}
