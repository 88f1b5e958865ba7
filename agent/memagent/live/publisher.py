"""The run's side of `memagent run --live`: two datagrams a second to the process that draws.

A datagram is sent whole or not at all and never blocks. Every rank that a launcher started sends
its own, and no file is left behind.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Any, Protocol

EVERY_S = 0.5
FIELDS = ("run_id", "rank", "status", "steps", "peaks", "forecast")
"""The part of the run's report that is shown: a datagram is small."""


class ReportingRun(Protocol):
    """The part of a `Run` that is published."""

    status: str

    def report(self) -> dict[str, Any]: ...


def start_publishing(address: str, run: ReportingRun, total_steps: int | None) -> None:
    """Send the state of `run` to the socket at `address` until it ends, on a thread."""
    threading.Thread(
        target=_publish, args=(address, run, total_steps), name="memagent-live", daemon=True
    ).start()


def _publish(address: str, run: ReportingRun, total_steps: int | None) -> None:
    never = threading.Event()  # a sleep that interpreter shutdown can end
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        # a full socket drops a datagram: the next one has newer numbers
        sender.setblocking(False)
        while True:
            # read before the report, so that the last datagram shows the final status
            is_last = run.status != "running"
            with contextlib.suppress(Exception):  # the viewer has gone, or is slow
                report = run.report()
                state = {**{name: report[name] for name in FIELDS}, "total_steps": total_steps}
                sender.sendto(json.dumps(state).encode(), address)
            if is_last or never.wait(EVERY_S):
                return
