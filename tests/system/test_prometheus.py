"""A real Prometheus and VictoriaMetrics scrape a real server: every panel of the dashboards has data."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from memagent.wire.codec import encode
from memagent.wire.columns import pack
from memagent.wire.messages import Batch, Chunk, Device, PredictionMessage, RunStart
from memagent_demo.fake_slack import SlackReceiver
from tests.waiting import wait_until

DASHBOARDS = Path(__file__).parents[2] / "dashboards"
GIB = 2**30

TRAINING = """
import time, torch, memagent
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
with memagent.attach(model, optimizer, project="proof"):
    for _ in range(100):
        optimizer.zero_grad(); model(torch.randn(8, 64)).sum().backward(); optimizer.step(); time.sleep(0.005)
    time.sleep(60)
"""


def needed(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(f"{program} is not installed")
        pytest.skip(f"{program} is not installed: python scripts/system_packages.py installs it")
    return path


@pytest.fixture
def training(live_server):
    environ = {**os.environ, "MEMAGENT_SERVER": live_server.url, "MEMAGENT_RUN_ID": "cpu-run"}
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINING], env=environ, stderr=subprocess.DEVNULL
    )
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def gpu_run(live_server):
    """A run as an agent on a GPU posts it, leaking toward its limit."""
    device = Device(id="GPU-1", kind="cuda", name="NVIDIA A100", limit_bytes=40 * GIB)
    steps = range(400)
    start = RunStart(run_id="gpu-run", project="proof", devices=[device], started_at=time.time())
    floor = [20 * GIB + step * 2**25 for step in steps]
    columns = {
        "step": list(steps),
        "time_s": [time.time() - 400 + step for step in steps],
        "step_s": [1.0] * 400,
        "allocated_bytes": floor,
        "peak_allocated_bytes": [value + 5 * GIB for value in floor],
        "reserved_bytes": [value + 6 * GIB for value in floor],
        "peak_reserved_bytes": [value + 6 * GIB for value in floor],
        "device_used_bytes": [value + 7 * GIB for value in floor],
        "limit_bytes": [40 * GIB] * 400,
        "alloc_retries_total": [0] * 400,
        "ooms_total": [0] * 400,
        "parameters_bytes": [4 * GIB] * 400,
        "phase_forward_peak_bytes": [value + 5 * GIB for value in floor],
        "host_rss_bytes": [3 * GIB] * 400,
    }
    prediction = PredictionMessage(
        method="formula",
        device="GPU-1",
        peak_allocated_bytes=25 * GIB,
        components={"parameters": 4 * GIB},
    )
    batch = Batch(seq=0, chunks=[Chunk(stream="GPU-1", packed=pack(columns))])
    for path, message in (
        ("", start),
        ("/gpu-run/batches", batch),
        ("/gpu-run/predictions", prediction),
    ):
        response = live_server.post(f"/api/v1/runs{path}", encode(message))
        assert response.status in (200, 201), response.body


class Prometheus:
    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list:
        response = urllib3.request(
            "GET", f"{self.url}/api/v1/query?query={urllib.parse.quote(expression)}", timeout=10
        )
        output = json.loads(response.data)
        assert output["status"] == "success", (expression, output)
        return output["data"]["result"]


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def slack():
    with SlackReceiver() as receiver:
        yield receiver


@pytest.fixture
def alertmanager(tmp_path, slack):
    """The example of dashboards/alertmanager, whose messages to Slack come to us, and sooner."""
    program = needed("prometheus-alertmanager")
    (tmp_path / "slack_url").write_text(slack.url)
    example = (DASHBOARDS / "alertmanager/alertmanager.yml").read_text()
    config = tmp_path / "alertmanager.yml"
    config.write_text(
        example.replace("/run/secrets/alertmanager_slack_url", str(tmp_path / "slack_url")).replace(
            "group_wait: 10s", "group_wait: 1s"
        )
    )
    address = free_address()
    with (tmp_path / "alertmanager.log").open("w") as log:
        process = subprocess.Popen(
            [program, f"--config.file={config}", f"--storage.path={tmp_path / 'silences'}",
             f"--web.listen-address={address}", "--cluster.listen-address="],
            stdout=log, stderr=log,
        )  # fmt: skip
    yield address
    process.terminate()
    process.wait()


@pytest.fixture
def prometheus(tmp_path, live_server, alertmanager):
    program = needed("prometheus")
    config = tmp_path / "prometheus.yml"
    target = live_server.url.removeprefix("http://")
    # two addresses, as two servers of one database have
    targets = [target, target.replace("127.0.0.1", "localhost")]
    config.write_text(
        f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{DASHBOARDS / 'prometheus/rules.yml'}]\n"
        f"scrape_configs: [{{job_name: memagent, static_configs: [{{targets: {targets}}}]}}]\n"
        f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['{alertmanager}']}}]}}]}}\n"
    )
    address = free_address()
    log = (tmp_path / "prometheus.log").open("w")
    process = subprocess.Popen(
        [
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'tsdb'}",
            f"--web.listen-address={address}",
        ],
        stdout=log,
        stderr=log,
    )
    yield Prometheus(f"http://{address}")
    process.terminate()
    process.wait()
    log.close()


class VictoriaMetrics(Prometheus):
    """Started as the docs say. It answers Prometheus's queries."""

    def __init__(self, config: Path, storage: Path) -> None:
        address = free_address()
        super().__init__(f"http://{address}")
        with storage.with_suffix(".log").open("a") as log:
            self.process = subprocess.Popen(
                [needed("victoria-metrics"), "-retentionPeriod=5y",
                 f"-promscrape.config={config}", "-promscrape.config.strictParse=false",
                 f"-storageDataPath={storage}", f"-httpListenAddr={address}"],
                stdout=log, stderr=log,
            )  # fmt: skip

    def stop(self) -> None:
        self.process.terminate()  # it writes what is in memory
        self.process.wait()


@pytest.fixture
def victoria_metrics(tmp_path, live_server):
    """start(is_scraping): a server on the same storage. It's stopped with the test."""
    token, config = tmp_path / "admin_token", tmp_path / "scrape.yml"
    token.write_text("any")  # this server is open
    example = (DASHBOARDS / "prometheus/prometheus.yml").read_text()
    started = []

    def start(*, is_scraping: bool = True) -> VictoriaMetrics:
        target = live_server.url.removeprefix("http://") if is_scraping else free_address()
        config.write_text(
            example.replace("/run/secrets/admin_token", str(token))
            .replace("server:8420", target)
            .replace("scrape_interval: 10s", "scrape_interval: 1s")
        )
        started.append(VictoriaMetrics(config, tmp_path / "victoria"))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def expressions() -> list[tuple[str, str, str]]:
    results = []
    for name in ("fleet.json", "run.json", "server.json"):
        for panel in json.loads((DASHBOARDS / name).read_text())["panels"]:
            results += [
                (name, panel["title"], target["expr"]) for target in panel.get("targets", [])
            ]
    return results


def panels(server: Prometheus) -> Iterator[tuple[tuple[str, str, str, str], list]]:
    """Yield the place of each expression, and its series."""
    for run in ("cpu-run", "gpu-run"):
        for name, title, expression in expressions():
            series = server.query(expression.replace("$run", run).replace("$rank", ".*"))
            yield (run, name, title, expression), series


def empty_panels(server: Prometheus) -> list[tuple[str, str, str, str]]:
    return [place for place, series in panels(server) if not series]


def doubled_panels(server: Prometheus) -> list[tuple[str, str, str, str]]:
    """Return those that show what is stored once for each server."""
    return [
        place
        for place, series in panels(server)
        if len({one["metric"].get("instance") for one in series}) > 1
        and "scrape_duration" not in place[-1]
        and not place[-1].startswith("up{")
    ]


def stored_samples(storage: Prometheus) -> int:
    results = storage.query('count_over_time(memagent_allocated_bytes{run_id="gpu-run"}[1h])')
    return int(results[0]["value"][1]) if results else 0


@pytest.mark.slow
def test_no_panel_is_empty_and_an_alert_reaches_slack(
    live_server, training, gpu_run, prometheus, victoria_metrics, slack
):
    storage = victoria_metrics()
    wait_until(
        lambda: (
            live_server.get("/api/v1/runs/cpu-run").status == 200
            and live_server.get("/api/v1/runs/cpu-run").json["step"] == 100
        )
    )
    wait_until(lambda: live_server.get("/api/v1/runs/gpu-run/forecast").json["forecasts"])
    wait_until(
        lambda: (
            responds(prometheus)
            and len(prometheus.query('up{job="memagent"} == 1')) == 2
            and prometheus.query("rate(memagent_ingested_samples_total[1m])")
        )
    )
    wait_until(
        lambda: len(prometheus.query("memagent_oom_probability")) == 4
    )  # each run has a first forecast of its own, at each address
    assert {item["metric"]["run_id"] for item in prometheus.query("memagent_run_info")} == {
        "cpu-run",
        "gpu-run",
    }
    assert empty_panels(prometheus) == [] and doubled_panels(prometheus) == []
    wait_until(lambda: not empty_panels(storage), lambda: f"data for {empty_panels(storage)}")
    will_run_out = 'ALERTS{alertname="MemagentRunWillRunOutOfMemory", run_id="gpu-run"}'
    assert len(prometheus.query(will_run_out)) == 1
    assert not prometheus.query('ALERTS{run_id="cpu-run"}')
    wait_until(lambda: slack.messages)
    payloads = json.dumps([message.payload for message in slack.messages])
    assert (
        "Run gpu-run (rank 0, GPU-1) will run out of memory" in payloads
        and "/runbooks#oom_forecast" in payloads
    )
    assert "cpu-run" not in payloads
    wait_until(lambda: stored_samples(storage) > 3)
    stored = stored_samples(storage)
    storage.stop()
    storage = victoria_metrics(is_scraping=False)
    wait_until(lambda: responds(storage))
    assert stored_samples(storage) >= stored


def test_the_rules_and_their_unit_tests_pass():
    promtool = needed("promtool")
    for arguments in (
        ["check", "rules", "rules.yml"],
        ["test", "rules", "rules_test.yml"],
        ["check", "config", "--syntax-only", "prometheus.yml"],
    ):
        result = subprocess.run(
            [promtool, *arguments], cwd=DASHBOARDS / "prometheus", capture_output=True, text=True
        )
        assert result.returncode == 0, result.stdout + result.stderr


def test_the_alertmanager_example_is_valid():
    command = [needed("amtool"), "check-config", DASHBOARDS / "alertmanager/alertmanager.yml"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_exposition_is_clean(live_server, gpu_run):
    promtool = needed("promtool")
    text = live_server.get("/metrics").body
    assert b'memagent_allocated_bytes{device="GPU-1",rank="0",run_id="gpu-run"}' in text
    result = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True)
    assert result.returncode == 0, result.stdout + result.stderr


def responds(server: Prometheus) -> bool:
    try:
        server.query("vector(1)")
    except urllib3.exceptions.HTTPError:
        return False
    return True
