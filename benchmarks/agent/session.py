"""One tracker in a training with steps of a millisecond, in its own process: before it starts, and
while it logs.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.agent.peers import PEERS, Peer
from benchmarks.agent.workload import Workload, small
from benchmarks.figures import Figure, from_samples, quantile


@dataclass(frozen=True)
class Session:
    """Seconds and bytes. `ratio` is the step with the tracker over the step before its import, in
    the same process.
    """

    version: str
    added_s: float
    ratio: float
    p99_added_s: float
    call_s: float
    call_p99_s: float
    stop_s: float
    memory_bytes: int


def session(name: str, *, steps: int) -> dict[str, Any]:
    """Run one session of the tracker `name`. Return an empty dict if it is not installed."""
    kind = PEERS[name]
    version = kind.version()
    if version is None:
        return {}
    workload = small()
    workload.times(200)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        return asdict(_measure(kind(Path(folder), workload), workload, version, steps))


def _measure(peer: Peer, workload: Workload, version: str, steps: int) -> Session:
    memory = psutil.Process().memory_info
    bare = workload.times(steps)
    resident = memory().rss
    peer.start()
    step = peer.around(workload.step)
    _logged_steps(peer, step, 50)
    watched, calls = _logged_steps(peer, step, steps)
    resident = memory().rss - resident
    began = time.perf_counter()
    peer.stop()
    stopped = time.perf_counter()
    return Session(
        version=version,
        added_s=statistics.median(watched) - statistics.median(bare),
        ratio=statistics.median(watched) / statistics.median(bare),
        p99_added_s=quantile(watched, 0.99) - quantile(bare, 0.99),
        call_s=statistics.median(calls),
        call_p99_s=quantile(calls, 0.99),
        stop_s=stopped - began,
        memory_bytes=resident,
    )


def _logged_steps(peer: Peer, step: Any, count: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each step with logging, and of the logging call alone."""
    times, calls, clock = [], [], time.perf_counter
    for number in range(count):
        began = clock()
        step()
        stepped = clock()
        peer.log(number)
        ended = clock()
        times.append(ended - began)
        calls.append(ended - stepped)
    return times, calls


def figures(name: str, sessions: list[dict[str, Any]]) -> list[Figure]:
    """Return the rows of one tracker over its sessions."""
    if not any(sessions):
        return [Figure(name, "us", note=f"not installed: pip install {PEERS[name].package}")]
    records = [Session(**values) for values in sessions]

    def median(field: str) -> float:
        return float(statistics.median(getattr(one, field) for one in records))

    note = (
        f"{PEERS[name].package} {records[0].version}; step x {median('ratio'):.2f}; stop {median('stop_s'):.2g} s; "
        f"{median('memory_bytes') / 2**20:.0f} MiB"
    )
    if _has_call(name):
        note = f"the call itself {1e6 * median('call_s'):.1f} us, p99 {1e6 * median('call_p99_s'):.0f}; {note}"
    added = [one.added_s for one in records]
    return [from_samples(name, "us", added, scale=1e6, p99=1e6 * median("p99_added_s"), note=note)]


def _has_call(name: str) -> bool:
    return PEERS[name].log is not Peer.log
