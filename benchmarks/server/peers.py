"""Servers of other trackers, given the same values in their fastest way: a batch of many values per
request.

Each runs in its own interpreter, possibly of another environment: BENCHMARK_MLFLOW and
BENCHMARK_TRACKIO name its Python. Values are those of samples with 20 columns, so a batch of 500
samples holds 10,000.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import urllib3

from benchmarks.figures import Figure
from benchmarks.server.load import Answers, Client, post_all
from benchmarks.server.over_http import PROCESSES, checked, clients, fresh_server
from benchmarks.server.real_server import Server, running
from benchmarks.server.workload import COUNTERS

TITLE = "beside the servers of other trackers: values a second"
CLIENTS = 4
COLUMNS = len(COUNTERS) + 2
MLFLOW_GOAL, TRACKIO_GOAL = 100.0, 10.0
MLFLOW_VALUES = 1000
"""Maximum that log-batch accepts."""


def measure(quick: bool) -> list[Figure]:
    ours = _ours(4 if quick else 100)
    figures = [
        Figure("memagent, 500 samples a request", "/s", ours, note=f"{PROCESSES} web processes")
    ]
    for name, goal, values_per_s in (
        ("mlflow", MLFLOW_GOAL, _mlflow),
        ("trackio", TRACKIO_GOAL, _trackio),
    ):
        python = os.environ.get(f"BENCHMARK_{name.upper()}", sys.executable)
        version = _version(python, name)
        if version is None:
            missing = (
                f"not installed: pip install {name}, here or where BENCHMARK_{name.upper()} says"
            )
            figures += [
                Figure(f"{name} server", "/s", note=missing),
                Figure(f"memagent by {name}", "x", note=missing),
            ]
            continue
        theirs = values_per_s(python, 2 if quick else 20)
        figures.append(Figure(f"{name} server", "/s", theirs, note=f"{name} {version}"))
        figures.append(
            Figure(f"memagent by {name}", "x", ours / theirs, goal=goal, more_is_better=True)
        )
    return figures


def _ours(count: int) -> float:
    those = clients(CLIENTS, count, 500)
    with fresh_server(those) as server:
        return checked(post_all(server.url, those)).per_s * 500 * COLUMNS


def _mlflow(python: str, count: int) -> float:
    with tempfile.TemporaryDirectory(prefix="memagent-benchmark-") as folder:
        port = _free_port()
        command = [
            python,
            "-m",
            "mlflow",
            "server",
            "--backend-store-uri",
            f"sqlite:///{folder}/mlflow.db",
        ]
        command += [
            "--artifacts-destination",
            folder,
            "--port",
            str(port),
            "--workers",
            str(PROCESSES),
        ]
        with _serving(command, port) as server:
            runs = [_create_run(server.url) for _ in range(CLIENTS)]
            answers = _posted(
                server.url, "/api/2.0/mlflow/runs/log-batch", [_batches(run, count) for run in runs]
            )
            return answers.per_s * MLFLOW_VALUES


def _trackio(python: str, count: int) -> float:
    """trackio: its dashboard is its server, and clients send it lists of samples."""
    token, rows = "a-token-for-benchmarks", 500
    start = "import sys; from trackio.cli import main; sys.argv = ['trackio', 'show']; main()"
    with tempfile.TemporaryDirectory(prefix="memagent-benchmark-") as folder:
        port = _free_port()
        environ = {
            "TRACKIO_DIR": folder,
            "TRACKIO_WRITE_TOKEN": token,
            "GRADIO_SERVER_PORT": str(port),
        }
        environ |= {
            "GRADIO_NUM_PORTS": "1",
            "GRADIO_ANALYTICS_ENABLED": "False",
            "HF_HUB_OFFLINE": "1",
            "BROWSER": "true",
        }
        headers = ("Content-Type: application/json", f"X-Trackio-Write-Token: {token}")
        with _serving([python, "-c", start], port, environ) as server:
            requests = [_logs(f"run-{client}", count, rows) for client in range(CLIENTS)]
            answers = _posted(server.url, "/api/bulk_log", requests, headers)
            return answers.per_s * rows * COLUMNS


def _logs(run: str, count: int, rows: int) -> list[bytes]:
    names = ("step", "time_s", *COUNTERS)
    return [
        json.dumps(
            {
                "hf_token": None,
                "logs": [
                    {
                        "project": "benchmark",
                        "run": run,
                        "step": step,
                        "metrics": dict.fromkeys(names, 1000000000.0 + step),
                    }
                    for step in range(number * rows, (number + 1) * rows)
                ],
            }
        ).encode()
        for number in range(count)
    ]


def _create_run(url: str) -> str:
    answer = urllib3.request(
        "POST", f"{url}/api/2.0/mlflow/runs/create", json={"experiment_id": "0"}, timeout=60.0
    )
    run_id: str = answer.json()["run"]["info"]["run_id"]
    return run_id


def _batches(run_id: str, count: int) -> list[bytes]:
    samples = MLFLOW_VALUES // COLUMNS
    return [
        json.dumps(
            {
                "run_id": run_id,
                "metrics": [
                    {
                        "key": name,
                        "value": 1e9 + step,
                        "timestamp": 1_700_000_000_000 + step,
                        "step": step,
                    }
                    for step in range(number * samples, (number + 1) * samples)
                    for name in ("step", "time_s", *COUNTERS)
                ],
            }
        ).encode()
        for number in range(count)
    ]


def _posted(
    url: str,
    path: str,
    of_clients: Sequence[Sequence[bytes]],
    headers: Sequence[str] = ("Content-Type: application/json",),
) -> Answers:
    return checked(post_all(url, [Client(path, bodies, headers=headers) for bodies in of_clients]))


@contextmanager
def _serving(
    command: list[str], port: int, environ: dict[str, str] | None = None
) -> Iterator[Server]:
    """Start a server that prints nothing; it is ready when it answers."""
    shell = ["sh", "-c", f'echo http://127.0.0.1:{port}; exec "$@" >/dev/null 2>&1', "sh", *command]
    with running(shell, environ or {}) as server:
        until = time.monotonic() + 90.0
        while True:
            try:
                urllib3.request("GET", f"{server.url}/version", timeout=20.0, retries=False)
                break
            except urllib3.exceptions.HTTPError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
        yield server


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def _version(python: str, package: str) -> str | None:
    ask = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
