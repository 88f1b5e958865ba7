"""Each example runs as it is and leaves a finished run."""

from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
STEPS = {
    "plain_loop": 50,
    "transformers_trainer": 16,
    "accelerate_loop": 25,
    "lightning_fit": 32,
    "lora": 20,
}
REQUIRED_SETTINGS = {
    "transformers_trainer": "transformers",
    "accelerate_loop": "accelerate",
    "lightning_fit": "lightning",
    "lora": "peft",
}


@pytest.mark.parametrize("example", STEPS)
def test_it_leaves_a_finished_run(fork_server, recording, example):
    if example in REQUIRED_SETTINGS:
        pytest.importorskip(REQUIRED_SETTINGS[example])
    process = fork_server.run(str(EXAMPLES / f"{example}.py"))
    assert process.returncode == 0, process.stderr
    recorded = recording()
    assert (recorded.finish.status, recorded.finish.step) == ("completed", STEPS[example])
    assert recorded.start.project == "examples"


@pytest.mark.parametrize("arguments", [(), ("fsdp2",)], ids=["DDP", "FSDP2"])
def test_the_distributed_example_leaves_a_finished_run_of_two_ranks(
    two_ranks, clean_settings, arguments
):
    two_ranks(str(EXAMPLES / "distributed.py"), *arguments)
    names = sorted(path.name.split("-")[:2] for path in clean_settings.glob("*.memagent"))
    assert len({run_id for run_id, _ in names}) == 1 and [rank for _, rank in names] == [
        "rank0",
        "rank1",
    ]


def test_every_example_is_run_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*STEPS, "distributed"}
