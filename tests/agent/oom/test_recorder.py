"""Deaths without any memory left: the report is complete, and no error of the agent hides it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import memagent
from memagent.hooks.oom_observer import AllocationFailure

PACKAGE = Path(memagent.__file__).parent
SCRIPT = """\
import resource, sys, torch

torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + 600 * 2**20, mapped + 600 * 2**20))

def step():
    model(torch.randn(4, 64)).sum().backward()
    optimizer.step()

def swallow():
    for _ in range(30):
        step()
    size = 2**24
    while size > 8:
        try:
            kept.append(bytearray(size))
        except MemoryError:
            size //= 2
    while True:
        kept.append(object())

def leak():
    while True:
        step()
        kept.append([[index] for index in range(20_000)])

kept = []
{"swallow": swallow, "leak": leak}[sys.argv[1]]()
"""


@pytest.fixture
def die(tmp_path):
    """die(how): stderr and report of the script."""

    def run(how: str) -> tuple[str, dict]:
        (tmp_path / "script.py").write_text(SCRIPT)
        done = subprocess.run(
            [sys.executable, "-m", "memagent", "run", "--report", "r.json", "script.py", how],
            cwd=tmp_path,
            env={**os.environ, "MEMAGENT_DIR": str(tmp_path), "MEMAGENT_RAISE": ""},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 1, done.stderr
        return done.stderr, json.loads((tmp_path / "r.json").read_text())

    return run


pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel keeps RLIMIT_AS only on Linux"
)


@pytest.mark.parametrize(("device", "cause"), [(None, "host_memory"), (0, None)])
def test_growth_of_the_host_is_no_cause_of_a_full_gpu(device, cause):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with memagent.attach(model, optimizer, predict=False) as run:
        recorder = run._pipeline.oom
        recorder._note_failure(AllocationFailure(2**20, device))
        recorder._get_forecast = lambda: {"cause": "host_memory", "step": 9}
        event = recorder.build_event(MemoryError(), (), {}, [])
    assert event.data.get("forecast", {}).get("cause") == cause


def test_a_script_that_swallows_everything_gets_a_report(die):
    stderr, report = die("swallow")
    assert "memagent: Out of memory in data of step 31 on host" in stderr
    assert stderr.rstrip().splitlines()[-1].startswith("memagent: out of memory in data of step 31")
    assert stderr.count("Traceback") == 1 and str(PACKAGE) not in stderr.partition("Traceback")[2]
    assert report["status"] == "oom" and report["steps"] == 30
    assert report["out_of_memory"]["title"].startswith("Out of memory in data of step 31")


@pytest.mark.long
def test_a_leak_that_reaches_the_limit_keeps_its_cause(die):
    stderr, report = die("leak")
    assert "  cause: leak, forecast since step " in stderr
    assert str(PACKAGE) not in stderr.partition("Traceback")[2]
    assert report["out_of_memory"]["cause"] == "leak"
