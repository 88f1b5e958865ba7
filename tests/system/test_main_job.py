"""The whole path: a real training process, a real server process, and Slack's protocol."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.python_fork import ForkedProcess
from tests.waiting import wait_until

TRAINING = """
import sys, time
import torch, memagent
steps, leak = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.AdamW(model.parameters())
kept = []
with memagent.attach(model, optimizer, config={"leak": leak}, total_steps=steps) as run:
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(32, 64)).pow(2).mean()
        loss.backward()
        optimizer.step()
        run.log({"loss": loss})
        if leak:
            kept.append(torch.ones(leak // 4))
        time.sleep(0.01)
"""


@pytest.fixture
def train(fork_server, tmp_path):
    def start(
        url: str, run_id: str, steps: int, *, leak: int = 0, limit: int = 0, environ=None
    ) -> ForkedProcess:
        script = tmp_path / f"{run_id}.py"
        limiting = (
            f"import resource; resource.setrlimit(resource.RLIMIT_DATA, ({limit}, {limit}))\n"
            if limit
            else ""
        )
        script.write_text(limiting + textwrap.dedent(TRAINING))
        settings = {"MEMAGENT_SERVER": url, "MEMAGENT_RUN_ID": run_id}
        return fork_server.start(
            str(script), str(steps), str(leak), env={**os.environ, **settings, **(environ or {})}
        )

    return start


def all_steps(server, run_id: str, **query: str) -> list[int]:
    options = "&".join(
        f"{name}={value}"
        for name, value in {"points": "10000", "fields": "allocated_bytes", **query}.items()
    )
    return server.get(f"/api/v1/runs/{run_id}/series?{options}").json["step"]


def test_a_training_is_stored_whole(live_server, train):
    process = train(live_server.url, "whole", 300)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    run = live_server.get("/api/v1/runs/whole").json
    assert (run["status"], run["step"], run["dropped_samples"]) == ("completed", 300, {})
    assert run["config"] == {"leak": 0} and run["environment"]["torch"]
    assert all_steps(live_server, "whole") == list(range(301))
    assert all_steps(live_server, "whole", device="scalars", fields="loss") == list(range(1, 301))
    assert live_server.get("/api/v1/alerts?run=whole").json["alerts"] == []


def test_the_run_page_compares_prediction_and_observation(live_server, train):
    train(live_server.url, "compared", 50).communicate()
    body = live_server.get("/api/v1/runs/compared/components").json
    results = {item["component"]: item for item in body["components"]}
    assert results["parameters"]["predicted_bytes"] == results["parameters"]["observed_bytes"] > 0
    assert results["parameters"]["residual_bytes"] == 0
    assert abs(results["optimizer_state"]["residual_bytes"]) < 100
    peak = body["peak"]
    assert peak["residual_bytes"] == peak["observed_bytes"] - peak["predicted_bytes"]


@pytest.mark.long  # tests/system/faults kills one in each run of the suite
def test_a_server_that_is_killed_and_comes_back_gets_every_sample_once(
    start_server, train, tmp_path
):
    data = tmp_path / "kept"
    server = start_server(data=data)
    listen = server.url.removeprefix("http://")
    process = train(server.url, "survivor", 1200)
    wait_until(
        lambda: (
            server.get("/api/v1/runs/survivor").status == 200
            and server.get("/api/v1/runs/survivor").json["step"] > 50
        )
    )
    server.kill()
    time.sleep(2)
    server = start_server(data=data, listen=listen)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "training continues" in output and "delivery works again" in output
    assert all_steps(server, "survivor") == list(range(1201))
    run = server.get("/api/v1/runs/survivor").json
    assert (run["status"], run["dropped_samples"]) == ("completed", {})


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel keeps RLIMIT_DATA only on Linux"
)
@pytest.mark.long  # the demo shows most of it in each run of the suite
def test_slack_reports_a_leak_before_the_run_runs_out_of_memory(start_server, train):
    from memagent_demo.fake_slack import SlackReceiver

    with SlackReceiver() as slack:
        server = start_server(
            environ={"MEMAGENT_SLACK_WEBHOOK_URL": slack.url, "MEMAGENT_ALLOW_LOCAL_WEBHOOKS": "1"}
        )
        process = train(server.url, "doomed", 50_000, leak=2**20, limit=3 * 2**29)
        output, _ = process.communicate()
        died_at = time.time()
        assert process.returncode == 1 and "allocate" in output
        wait_until(lambda: server.get("/api/v1/runs/doomed").json["status"] == "oom")
        wait_until(
            lambda: all(
                alert["state"] == "oom"
                for alert in server.get("/api/v1/alerts?run=doomed").json["alerts"]
            )
        )
        early = [
            message
            for message in slack.messages
            if message.received_at < died_at and "doomed" in json.dumps(message.payload)
        ]
        assert early and "out of memory" in early[0].text
        assert "will run out of memory" in early[0].text
        wait_until(lambda: any("ran out of memory" in message.text for message in slack.messages))
    assert "will run out of memory" in output  # the same warning, on the training's own stderr


@pytest.mark.long  # tests/agent/cli/test_demo.py runs a shorter one in each run of the suite
def test_the_demo_meets_its_claims(tmp_path):
    """Less memory and fewer steps than `make demo`, and enough to diagnose the leak in time."""
    command = [
        sys.executable,
        "-m",
        "memagent",
        "demo",
        "--json",
        "--limit",
        "1GiB",
        "--steps",
        "130",
    ]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert process.returncode == 0, process.stderr
    story = json.loads(process.stdout)
    assert story["healthy"]["status"] == "completed" and story["healthy"]["alerts"] == 0
    leaking = story["leaking"]
    assert leaking["status"] == "oom"
    assert (
        leaking["first_warning_step"] < leaking["oom_step"] and leaking["warned_seconds_before"] > 0
    )
    assert "leaking" in leaking["slack_text"]
    assert re.search(
        r"Suspect: \S+train\.py:\d+ keeps .* held by outputs: list of", leaking["slack_text"]
    ), process.stderr
    assert Path(story["database"].removeprefix("sqlite:///")).is_relative_to(tmp_path), (
        "it is there to be looked into"
    )
    assert leaking["first_warning_step"] / 2 < leaking["checkpoint_step"] < leaking["oom_step"]
