"""Trials of the real Ray Tune: one trains, one won't fit, one runs out of memory, one has a bug."""

from __future__ import annotations

import json
import textwrap

import pytest

pytest.importorskip("ray")

SCRIPT = """
import json, math, sys
import ray, torch
from ray import tune
import memagent
from memagent.integrations.ray_tune import check_trial, end_too_large

def make_model():
    return torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1))

@end_too_large(loss=math.inf)
def train(config):
    if config["case"] in ("small", "large"):
        batch = 16 if config["case"] == "small" else 2**19
        check_trial(make_model, ((batch, 1024), "float32"), loss=lambda output, _: output.mean(), limit_bytes="2GiB")
    if config["case"] == "bug":
        raise ValueError("no such loss")
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with memagent.attach(model, optimizer, predict=False):
        model(torch.randn(4, 8)).mean().backward()
        optimizer.step()
        if config["case"] == "oom":
            torch.empty(2**50)
    tune.report({"loss": 1.0})

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20)
cases = tune.grid_search(["small", "large", "oom", "bug"])
settings = tune.TuneConfig(reuse_actors=True)  # one process, which imports torch once
results = tune.Tuner(train, param_space={"case": cases}, tune_config=settings, run_config=tune.RunConfig(storage_path=sys.argv[1], verbose=0)).fit()
print("RESULTS", json.dumps({
    result.config["case"]: "error" if result.error else {
        name: value for name, value in result.metrics.items() if name == "loss" or name.startswith("memagent")
    } for result in results
}))
"""


def test_trials_end_with_a_result_that_says_why(fork_server, tmp_path, clean_settings, monkeypatch):
    for name, value in {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",  # a busy machine's memory isn't the subject
        "RAY_AIR_NEW_OUTPUT": "0",
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
    }.items():
        monkeypatch.setenv(name, value)
    script = tmp_path / "search.py"
    script.write_text(textwrap.dedent(SCRIPT))
    process = fork_server.run(str(script), str(tmp_path / "results"), timeout=600)
    assert process.returncode == 0, process.stderr
    (line,) = (line for line in process.stdout.splitlines() if line.startswith("RESULTS"))
    results = json.loads(line.removeprefix("RESULTS"))
    assert results["small"] == {"loss": 1.0}
    assert results["large"]["loss"] == float("inf")
    assert results["large"]["memagent_verdict"] == "won't fit"
    assert results["large"]["memagent_needed_bytes"] > 4 * 2**30
    assert results["oom"]["memagent_verdict"] == "out of memory"
    assert results["oom"]["memagent_run_id"] and results["oom"]["loss"] == float("inf")
    assert results["bug"] == "error"
