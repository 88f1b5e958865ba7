"""The real Alertmanager: the alerts that it accepts, and the ones that it ends."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time

import pytest
import urllib3

from memagent_server.notify.alertmanager import AHEAD_S, Alertmanager
from tests.waiting import wait_until

CONFIG = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory):
    program = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if program is None:
        reason = "Alertmanager is not on PATH: install prometheus-alertmanager"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    folder = tmp_path_factory.mktemp("alertmanager")
    (folder / "config.yml").write_text(CONFIG)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [program, f"--config.file={folder}/config.yml", f"--storage.path={folder}", f"--web.listen-address=127.0.0.1:{port}",
               "--cluster.listen-address="]  # fmt: skip
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: get(f"{url}/-/ready") is not None)
        yield url
    finally:
        process.kill()
        process.wait()


def test_it_starts_and_ends_the_alert_in_alertmanager(alertmanager, make_message):
    now = time.time()
    channel = Alertmanager(alertmanager)
    message = make_message(topic="incident-1", opened_at=now, at=now)
    receipt = channel.send(message)
    (result,) = alerts(alertmanager, "incident-1")
    labels = result["labels"]
    assert (labels["alertname"], labels["severity"], labels["run_id"]) == (
        "MemagentOomForecast",
        "warning",
        "k3v9",
    )
    assert (
        "will run out of memory" in result["annotations"]["summary"]
        and result["status"]["state"] == "active"
    )
    assert result["generatorURL"] == "http://box/runs/k3v9"
    channel.send(
        make_message(topic="incident-1", opened_at=now, at=now, to_state="averted", receipt=receipt)
    )
    wait_until(lambda: alerts(alertmanager, "incident-1") == [])


def test_it_becomes_another_alert_when_it_escalates(alertmanager, make_message):
    now = time.time()
    channel = Alertmanager(alertmanager)
    receipt = channel.send(make_message(topic="incident-2", opened_at=now))
    receipt = channel.send(
        make_message(topic="incident-2", opened_at=now, severity="critical", receipt=receipt)
    )
    wait_until(
        lambda: (
            [item["labels"]["severity"] for item in alerts(alertmanager, "incident-2")]
            == ["critical"]
        )
    )
    channel.send(
        make_message(topic="incident-2", opened_at=now, to_state="finished", receipt=receipt)
    )
    wait_until(lambda: alerts(alertmanager, "incident-2") == [])


def test_a_death_does_not_end_the_alert(alertmanager, make_message):
    now = time.time()
    channel = Alertmanager(alertmanager)
    receipt = channel.send(make_message(topic="incident-3", opened_at=now))
    channel.send(make_message(topic="incident-3", opened_at=now, to_state="oom", receipt=receipt))
    wait_until(
        lambda: (
            [result["labels"]["severity"] for result in alerts(alertmanager, "incident-3")]
            == ["critical"]
        )
    )
    (result,) = alerts(alertmanager, "incident-3")
    assert "ran out of memory" in result["annotations"]["summary"]


def test_it_postpones_the_end_as_the_eta_moves(alertmanager, make_message):
    now = time.time()
    receipt = Alertmanager(alertmanager).send(make_message(topic="incident-4", opened_at=now))
    before = alerts(alertmanager, "incident-4")[0]["endsAt"]
    later = Alertmanager(alertmanager, clock=lambda: now + AHEAD_S / 2)
    assert (
        later.refresh(
            make_message(topic="incident-4", opened_at=now, facts={"step": 1200}, receipt=receipt)
        )
        == receipt
    )
    (result,) = alerts(alertmanager, "incident-4")
    assert result["endsAt"] > before and "in about 220 steps" in result["annotations"]["summary"]


def alerts(url: str, topic: str) -> list[dict]:
    """The active alerts of a topic."""
    return get(f'{url}/api/v2/alerts?filter=topic="{topic}"').json()


def get(url: str) -> urllib3.BaseHTTPResponse | None:
    try:
        with urllib3.PoolManager() as pool:
            response = pool.request("GET", url, retries=False, timeout=5)
    except (urllib3.exceptions.HTTPError, OSError):
        return None
    return response if response.status == 200 else None
