"""Each example runs as it is and leaves a finished run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
STEPS = {"plain_loop": 50, "transformers_trainer": 16, "accelerate_loop": 25, "lightning_fit": 32, "lora": 20}
NEEDS = {
    "transformers_trainer": "transformers",
    "accelerate_loop": "accelerate",
    "lightning_fit": "lightning",
    "lora": "peft",
}


def run(*command):
    process = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120, env=os.environ)
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("example", STEPS)
def test_it_leaves_a_finished_run(recording, example):
    if example in NEEDS:
        pytest.importorskip(NEEDS[example])
    run(str(EXAMPLES / f"{example}.py"))
    recorded = recording()
    assert (recorded.finish.status, recorded.finish.step) == ("completed", STEPS[example])
    assert recorded.start.project == "examples"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("fsdp2",)], ids=["DDP", "FSDP2"])
def test_the_distributed_one_leaves_a_finished_run_of_two_ranks(clean_settings, arguments):
    run(
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(EXAMPLES / "distributed.py"),
        *arguments,
    )
    names = sorted(path.name.split("-")[:2] for path in clean_settings.glob("*.memagent"))
    assert len({run_id for run_id, _ in names}) == 1 and [rank for _, rank in names] == ["rank0", "rank1"]


def test_every_example_is_run_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*STEPS, "distributed"}
