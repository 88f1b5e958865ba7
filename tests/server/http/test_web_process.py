"""A web process that no longer answers is replaced."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading

import psutil
import pytest
import urllib3

from memagent_server.http import web_process
from tests.waiting import wait_until


def web_pids(server):
    pids = set()
    for child in psutil.Process(server.process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            pids |= {child.pid} if "spawn_main" in " ".join(child.cmdline()) else set()
    return pids


@pytest.mark.xdist_group("short-deadlines")
def test_a_stopped_web_process_is_replaced(short_deadline_server):
    server = short_deadline_server
    (stopped,) = web_pids(server)
    wait_until(lambda: [*server.data.glob(f"memagent-counts-*/web-{stopped}.heartbeat")])
    os.kill(stopped, signal.SIGSTOP)
    wait_until(lambda: web_pids(server) - {stopped})

    def answers():
        with contextlib.suppress(urllib3.exceptions.HTTPError):
            return (
                urllib3.request("GET", f"{server.url}/healthz", timeout=2.0, retries=False).status
                == 200
            )

    wait_until(answers)
    assert f"web process {stopped} has not answered" in server.errors


def test_processes_without_a_common_folder_are_left_alone(monkeypatch):
    """No folder could be created, or it is gone because the server ends."""
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    checks, stopping = [], threading.Event()
    monkeypatch.setattr(web_process, "CHECK_S", 0.0)
    monkeypatch.setattr(web_process.HeartbeatMonitor, "_has_stopped", counted(checks, stopping))
    with subprocess.Popen(["sleep", "600"]) as child:
        web_process.HeartbeatMonitor().run(stopping)
        assert child.poll() is None and len(checks) > web_process.MAX_MISSED_CHECKS
        child.kill()


def counted(checks, stopping):
    """Set `stopping` after more checks than a process may miss."""
    has_stopped = web_process.HeartbeatMonitor._has_stopped

    def check(monitor, pid):
        checks.append(pid)
        if len(checks) > web_process.MAX_MISSED_CHECKS:
            stopping.set()
        return has_stopped(monitor, pid)

    return check
