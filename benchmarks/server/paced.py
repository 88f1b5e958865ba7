"""Latency at a pace that leaves the server idle time: how long an agent waits, and how far the
slowest request is from the median.
"""

from __future__ import annotations

from benchmarks.figures import Figure, quantile
from benchmarks.server.load import post_all
from benchmarks.server.over_http import PROCESSES, checked, clients, fresh_server

TITLE = "paced: 200 requests a second"
PER_S, CLIENTS = 200.0, 10
SPREAD_GOAL = 4.0


def measure(quick: bool) -> list[Figure]:
    figures = []
    for rows in (16, 500):
        paced = clients(CLIENTS, 20 if quick else 400, rows, every_s=CLIENTS / PER_S)
        with fresh_server(paced) as server:
            answers = checked(post_all(server.url, paced))
        middle, slow = quantile(answers.seconds, 0.5), quantile(answers.seconds, 0.99)
        note = f"p99.9 {1e3 * quantile(answers.seconds, 0.999):.1f}, worst {1e3 * max(answers.seconds):.1f}; {PROCESSES} web processes"
        figures += [
            Figure(
                f"a batch of {rows} samples, from when it was due",
                "ms",
                1e3 * middle,
                p99=1e3 * slow,
                note=note,
            ),
            Figure("p99 by p50", "x", slow / middle, goal=SPREAD_GOAL),
        ]
    return figures
