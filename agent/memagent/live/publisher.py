"""What `memagent run --live` is told of the run: twice a second a datagram to the process that draws, which may be gone.

A datagram is sent whole or not at all and never waits for anybody, from any rank that a launcher started, and no file is left behind.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Any, Protocol

EVERY_S = 0.5
KEPT = ("run_id", "rank", "status", "steps", "peaks", "forecast")
"""Of the run's report: the rest is not shown, and a datagram is small."""


class Reported(Protocol):
    """What is needed of a `Run`."""

    status: str

    def report(self) -> dict[str, Any]: ...


def feed_live(address: str, run: Reported, total_steps: int | None) -> None:
    """Send what `run` reports to the socket at `address` until it ends, from a thread of its own."""
    threading.Thread(
        target=_feed, args=(address, run, total_steps), name="memagent-live", daemon=True
    ).start()


def _feed(address: str, run: Reported, total_steps: int | None) -> None:
    ended = threading.Event()  # nobody sets it: a sleep that interpreter shutdown can end
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        while True:
            is_last = run.status != "running"
            with contextlib.suppress(
                Exception
            ):  # whoever draws is away, or is slow: the next one comes soon
                report = run.report()
                state = {**{name: report[name] for name in KEPT}, "total_steps": total_steps}
                sender.sendto(json.dumps(state).encode(), address)
            if is_last or ended.wait(EVERY_S):
                return
