"""Warnings and risks: how often, with which text, and in time to save a checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from msgspec.structs import replace

import memagent
from memagent.estimator.estimate import Estimate
from memagent.forecast import Forecast, Hints
from memagent.forecast.levels import PAGE_COST
from memagent.forecast.types import LEVELS
from memagent.local_forecast import monitor
from memagent.local_forecast.monitor import REPEAT_S, ForecastMonitor, notice_text, warning_text
from memagent.probe.host import HostProbe
from memagent.wire.messages import AdviceItem, Device, Risk, Suspect
from tests.waiting import wait_until

GIB, MIB = 2**30, 2**20
GPU = Device(id="gpu", kind="cuda", name="A100", limit_bytes=40 * GIB)
HOST = Device(id="host", kind="host", name="host", limit_bytes=64 * GIB)
FORECAST = Forecast(
    step=500, level="warning", oom_probability=0.9, cause="leak", eta_step=920.0, eta_s=1500.0, used_bytes=30 * GIB,
    limit_bytes=40 * GIB, growth_bytes_per_step=24 * MIB,
)  # fmt: skip
PREDICTION = Estimate(
    "trace",
    26 * GIB,
    {},
    advice=(
        AdviceItem(change="a smaller batch", saving_bytes=2 * GIB, code="batch = 4"),
        AdviceItem(
            change="recomputing activations",
            saving_bytes=9 * GIB,
            code="model.checkpointing()\nmore",
        ),
    ),
)


@pytest.fixture
def report(monkeypatch):
    """report(*levels) forecasts one device, a level a second; returns printed lines and risks."""

    def tell(*levels: str, step_s: float = 1.0) -> tuple[list[str], list[Risk]]:
        lines, risks = [], []
        monkeypatch.setattr(monitor, "notify_user", lines.append)
        forecast_monitor = ForecastMonitor(0, [GPU], Hints())
        forecast_monitor.add_risk_listener(risks.append)
        for second, level in enumerate(levels):
            forecast_monitor._report(
                forecast_monitor._forecasts["gpu"], replace(FORECAST, level=level), second * step_s
            )
        return [line.partition(":")[0] for line in lines], risks

    return tell


def test_1_it_reports_a_warning_and_a_worse_one_once_each(report):
    lines, risks = report("ok", "warning", "warning", "critical", "critical")
    assert lines == ["WARNING", "WARNING"] and [risk.level for risk in risks] == [
        "warning",
        "critical",
    ]


def test_1_it_repeats_a_warning_every_minute_without_a_second_risk(report):
    lines, risks = report(*["warning"] * 150)
    assert lines == ["WARNING"] * 3 and len(risks) == 1


def test_2_an_alternating_level_is_one_warning(report):
    lines, risks = report(*["warning", "ok"] * 20)
    assert lines == ["WARNING", "A100"] and len(risks) == 1


def test_3_a_warning_after_a_calm_minute_is_new(report):
    lines, risks = report("warning", *["ok"] * int(REPEAT_S + 1), "warning")
    assert lines == ["WARNING", "A100", "WARNING"] and len(risks) == 2


def test_1_it_reports_a_notice_once_a_run_and_calls_nobody(report):
    assert report(*["notice", "ok"] * 100, "notice") == (["NOTICE"], [])


def test_1_it_reports_no_notice_after_a_warning(report):
    lines, _ = report("warning", *["ok"] * int(REPEAT_S + 1), "notice")
    assert lines == ["WARNING", "A100"]


@pytest.mark.parametrize(("rank", "count"), [(0, 1), (1, 0)])
def test_1_only_the_first_rank_reports_a_notice_of_any_device(monkeypatch, rank, count):
    lines: list[str] = []
    monkeypatch.setattr(monitor, "notify_user", lines.append)
    forecast_monitor = ForecastMonitor(rank, [GPU, HOST], Hints())
    for entry in forecast_monitor._forecasts.values():
        forecast_monitor._report(entry, replace(FORECAST, level="notice"), 0.0)
    assert len(lines) == count


def test_a_notice_says_when_memory_may_run_out():
    assert notice_text(monitor.risk_of(0, GPU, replace(FORECAST, level="notice")), "A100") == (
        "NOTICE: step 500: A100 may run out of memory in about 420 steps (25 min): 30.00 GiB of "
        "40.00 GiB used, growing by 24.0 MiB per step. A warning follows if that becomes likely."
    )
    large = Risk(level="notice", cause="tail", used_bytes=GIB, limit_bytes=2 * GIB)
    assert "in a step with an unusually large batch: 1.00 GiB of" in notice_text(large, "A100")


def test_the_text_contains_eta_fill_cause_and_prediction():
    text = warning_text(monitor.risk_of(0, GPU, FORECAST), "A100", PREDICTION)
    first, cause, change, predicted, saving = text.splitlines()
    assert first == (
        "WARNING: step 500: A100 will run out of memory in about 420 steps (25 min): "
        "30.00 GiB of 40.00 GiB used, growing by 24.0 MiB per step."
    )
    assert cause.startswith("  cause: leak. ") and change.startswith("  change: ")
    assert predicted == "  predicted peak: 26.00 GiB (by trace); observed: 30.00 GiB"
    assert saving == "  in this run recomputing activations saves 9.00 GiB: model.checkpointing()"


SUSPECT = Suspect(
    kind="list", holder="Meter.outputs: list of 59 at step 59", file="/home/ana/train.py", line=9,
    bytes_per_step=24.0 * MIB, fix="Clear `self.outputs` once its values are used.",
    source=["    def update(self, prediction):", "        self.outputs.append(prediction)"], source_first_line=8,
)  # fmt: skip


def test_the_text_names_the_line_that_leaks_and_its_fix_instead_of_general_advice():
    risk = monitor.risk_of(0, GPU, FORECAST, (SUSPECT,))
    _, cause, *rest = warning_text(risk, "A100", PREDICTION, ["/home/ana"]).splitlines()
    assert cause.startswith("  cause: leak. ")
    assert rest == [
        "  suspect: train.py:9: Meter.outputs: list of 59 at step 59, 24.0 MiB a step.",
        "  change: Clear `self.outputs` once its values are used.",
        "      self.outputs.clear()  # once its values are used",
        "  predicted peak: 26.00 GiB (by trace); observed: 30.00 GiB",
    ]


@pytest.mark.parametrize(
    ("device", "cause", "kind", "is_named"),
    [
        ("gpu", "leak", "list", True),
        ("gpu", "leak", "worker", False),
        ("gpu", "fragmentation", "list", False),
        ("host", "host_memory", "list", False),
        ("host", "host_memory", "worker", True),
    ],
)
def test_a_risk_has_the_suspects_of_its_device(monkeypatch, device, cause, kind, is_named):
    monkeypatch.setattr(monitor, "notify_user", lambda _: None)
    suspects, risks = (replace(SUSPECT, kind=kind),), []
    forecast_monitor = ForecastMonitor(
        0, [GPU, HOST], Hints(), take_suspects=lambda is_shown: tuple(filter(is_shown, suspects))
    )
    forecast_monitor.add_risk_listener(risks.append)
    forecast_monitor._report(
        forecast_monitor._forecasts[device], replace(FORECAST, cause=cause), 0.0
    )
    assert [risk.suspects for risk in risks] == [suspects if is_named else ()]
    assert len(set(risks)) == 1, "a script may collect them"


def test_the_text_needs_no_prediction():
    assert len(warning_text(Risk(level="warning"), "A100").splitlines()) == 1
    assert "when it next evaluates" in warning_text(Risk(level="warning", cause="eval"), "A100")


def test_the_prediction_belongs_to_the_first_device(monkeypatch):
    lines: list[str] = []
    monkeypatch.setattr(monitor, "notify_user", lines.append)
    forecast_monitor = ForecastMonitor(0, [GPU, HOST], Hints())
    forecast_monitor.prediction = PREDICTION
    for device in ("gpu", "host"):
        forecast_monitor._report(forecast_monitor._forecasts[device], FORECAST, 0.0)
    assert ["predicted" in line for line in lines] == [True, False]


def test_it_warns_before_the_first_step_if_the_state_will_not_fit(training):
    """On the training thread, when gradients exist and the state doesn't."""
    risks, states = [], []
    model = torch.nn.Linear(2048, 2048)  # 16 MiB, its gradient, and 32 MiB of state
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 2048)).sum().backward()
    limit = HostProbe().used_bytes() + 28 * MIB

    def on_risk(risk: Risk) -> None:
        risks.append(risk)
        states.append(len(optimizer.state))

    run = memagent.attach(model, optimizer, limit_bytes=limit, on_risk=on_risk, predict=False)
    optimizer.step()
    run.finish()
    assert (risks[0].cause, risks[0].level, states[0]) == ("optimizer_state", "critical", 0)


def test_hints_of_the_script_reach_the_forecaster(training, recording):
    model, optimizer, step = training
    run = memagent.attach(
        model, optimizer, config={"epoch_steps": 7, "max_input_size": "no"}, predict=False
    )
    run.expect(max_input_size=4096)
    step()
    run.finish()
    hints = [event.data for event in recording().events if event.kind == "hints"]
    assert hints == [
        {"epoch_steps": 7, **({"optimizer_state_bytes": hints[0]["optimizer_state_bytes"]})},
        {**hints[0], "max_input_size": 4096},
    ]
    forecaster = run._pipeline.forecast.monitor._forecasts["host"].forecaster
    assert (forecaster._knowledge.epoch_steps, forecaster._sudden.max_input_size) == (7, 4096)


def test_no_hints_are_no_event(training, recording):
    model, optimizer, step = training
    with memagent.attach(model, optimizer, predict=False):
        step()
    assert recording().events == []


@pytest.mark.parametrize("value", [0, -3, "many", True, float("nan")])
def test_it_reports_an_invalid_hint_and_ignores_it(training, monkeypatch, capsys, value):
    monkeypatch.setenv("MEMAGENT_RAISE", "0")
    model, optimizer, _ = training
    run = memagent.attach(model, optimizer, predict=False)
    run.expect(epoch_steps=value)
    run.finish()
    assert f"epoch_steps must be a number of 1 or more, got {value!r}" in capsys.readouterr().err


def test_the_cost_of_a_page_reaches_the_forecaster(training, monkeypatch):
    model, optimizer, _ = training
    for cost, expected in (("", PAGE_COST), ("0.8", 0.8)):
        monkeypatch.setenv("MEMAGENT_PAGE_COST", cost)
        run = memagent.attach(model, optimizer, predict=False)
        run.finish()
        assert run._pipeline.forecast.monitor._forecasts["host"].forecaster.page_cost == expected


def test_the_prediction_reaches_the_forecaster(training):
    model, optimizer, step = training
    run = memagent.attach(model, optimizer)
    step()
    wait_until(lambda: run.prediction and not run.prediction.is_bound)
    run.finish()
    forecaster = run._pipeline.forecast.monitor._forecasts["host"].forecaster
    assert forecaster._knowledge.predicted_peak_bytes == run.prediction.peak_allocated_bytes


LEAKING = """
import resource, sys, time, torch, memagent
torch.set_num_threads(1)
model = torch.nn.Linear(512, 512)
optimizer = torch.optim.AdamW(model.parameters())
kept, saved = [], []
def save(risk):
    if not saved:
        torch.save({"model": model.state_dict(), "step": run.step}, sys.argv[1])
        saved.append(run.step)
        print(f"saved at {run.step}", flush=True)
resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))
run = memagent.attach(model, optimizer, on_risk=save, total_steps=100_000, predict=False)
while True:
    optimizer.zero_grad()
    output = model(torch.randn(64, 512))
    output.pow(2).mean().backward()
    optimizer.step()
    kept.append(output.detach().repeat(32, 1))  # 4 MiB
    time.sleep(0.02)
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel keeps RLIMIT_DATA only on Linux"
)
def test_a_leaking_script_saves_a_checkpoint_before_it_crashes(fork_server, tmp_path, recording):
    path = tmp_path / "checkpoint.pt"
    done = fork_server.run("-c", LEAKING, str(path))
    assert done.returncode == 1 and done.stdout.startswith("saved at "), done.stderr
    checkpoint, finish = torch.load(path), recording().finish
    assert finish.status == "oom" and 20 < checkpoint["step"] < finish.step
    assert "WARNING: step" in done.stderr and "cause: leak" in done.stderr
    assert sum("WARNING" in line for line in done.stderr.splitlines()) <= 3
    assert sum("NOTICE" in line for line in done.stderr.splitlines()) <= 1


def test_the_forecast_at_the_end_is_the_newest_alarm_unless_memory_came_down():
    forecast_monitor = ForecastMonitor(0, [HOST], Hints())

    def observe(first, *used):
        columns = {
            "step": list(range(first, first + len(used))),
            "time_s": [float(first + index) for index in range(len(used))],
            "allocated_bytes": list(used),
            "peak_allocated_bytes": list(used),
        }
        forecast_monitor.observe("host", columns)

    observe(0, *[GIB] * 20)
    assert forecast_monitor.at_the_end() is None
    observe(20, *[GIB + 300 * MIB * step for step in range(200)])
    alarm = forecast_monitor.at_the_end()
    assert alarm["cause"] == "leak" and 20 < alarm["first_step"] < alarm["step"]
    observe(220, *[61 * GIB] * 200)
    assert forecast_monitor.risks()[0].level == "ok"
    assert forecast_monitor.at_the_end()["first_step"] == alarm["first_step"]
    observe(420, *[2 * GIB] * 200)
    forecast_monitor.catch_up()
    assert forecast_monitor.at_the_end() is None


def test_growth_is_worth_a_diagnosis_before_anybody_hears_of_it():
    heard = []
    forecast_monitor = ForecastMonitor(0, [HOST], Hints(), on_growth=heard.append)
    for step in range(150):
        used = [GIB + 250 * MIB * step]
        columns = {"step": [step], "allocated_bytes": used, "peak_allocated_bytes": used}
        forecast_monitor.observe("host", columns)
    levels = [forecast.level for forecast in heard]
    assert levels == sorted(levels, key=LEVELS.index)
    assert set(levels) >= {"ok", "notice", "warning"}
    assert {forecast.cause for forecast in heard} == {"leak"}


LIMITED_LATER = """
import resource, time
import torch, memagent
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
risks = []
run = memagent.attach(model, optimizer, predict=False, on_risk=risks.append)
def step():
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
for _ in range(100):
    step()
used = next(line for line in open("/proc/self/status") if line.startswith("VmData"))
limit = int(used.split()[1]) * 1024 + 2**29
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
kept = []
while not risks:  # until the limit is hit, if there is no warning
    kept.append(torch.ones(2**18))
    step()
host = run.report()["peaks"]["host"]
print(risks[0].limit_bytes == limit == host["limit_bytes"], host["limit_source"], risks[0].cause)
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel keeps RLIMIT_DATA only on Linux"
)
def test_it_warns_of_a_limit_that_the_script_set_after_attach(tmp_path):
    """Without the limit, the leak is far from the machine's memory."""
    process = subprocess.run(
        [sys.executable, "-c", LIMITED_LATER],
        env={**os.environ, "MEMAGENT_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert process.stdout == "True RLIMIT_DATA leak\n", process.stderr
