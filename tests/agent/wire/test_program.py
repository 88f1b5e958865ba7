"""Reruns of a script and configuration have one program, other runs have another."""

from __future__ import annotations

import pytest

from memagent.wire.messages import RunStart
from memagent.wire.program import program_of


def program(command: str = "python train.py", config=None, directory="/home/ana/gpt", **fields):
    environment = {"command": command, "directory": directory}
    return program_of(RunStart(run_id="r", environment=environment, config=config or {}, **fields))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("python train.py --lr 1 --seed 3", "/usr/bin/python3 -u train.py --seed=4 --lr 1"),
        ("python train.py --out /tmp/a --lr=1", "python train.py --lr=1 --output-dir runs/b"),
        ("python train.py --max-steps 100", "python train.py --max-steps 9000"),
        ("python -m gpt.train lr=1 run.name=a", "python -m gpt.train lr=1 run.name=b"),
        ("python train.py 2026-11-27", "python train.py 2026-11-28"),
        ("python train.py --data /mnt/a/data", "python train.py --data /mnt/b/data"),
        ("python train.py 'cut off", "python train.py 'cut off"),
    ],
)
def test_reruns_have_one_program(first, second):
    assert program(first) == program(second) is not None


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --lr 2",
        "python other.py --lr 1",
        "python train.py --lr 1 --fp16",
        "python train.py --lr 1 big",
        "python -m train --lr 1",
    ],
)
def test_another_script_or_argument_is_another_program(command):
    assert program(command) != program("python train.py --lr 1")


def test_the_config_counts_apart_from_what_differs_from_run_to_run():
    before = {
        "seed": 1,
        "model": {"layers": 4, "name": "a"},
        "trainer": {"max_epochs": 3, "log_dir": "x"},
    }
    after = {
        "seed": 2,
        "model": {"layers": 4, "name": "b"},
        "trainer": {"max_epochs": 9, "log_dir": "y"},
    }
    assert program(config=before) == program(config=after)
    for other in ({"layers": 5}, {"layers": 4, "model_name": "gpt"}, {"layers": "4"}):
        assert program(config={**before, "model": other}) != program(config=before)
    assert program(config={"warmup_steps": 1}) != program(config={"warmup_steps": 2})


def test_the_number_of_ranks_counts_and_the_folder_above_the_script():
    assert program() != program(world_size=8)
    assert program(directory="/home/ben/gpt") == program() != program(directory="/home/ana/bert")


@pytest.mark.parametrize(
    "command", ["", "python", "python -c pass", "python -m ipykernel_launcher"]
)
def test_code_without_a_name_has_the_program_of_its_config(command):
    assert program(command) is None
    assert program(command, {"lr": 1}) == program("", {"lr": 1})


def test_the_commit_does_not_count():
    start = {"run_id": "r", "config": {"lr": 1}}
    first, second = (RunStart(**start, environment={"git_commit": commit}) for commit in "ab")
    assert program_of(first) == program_of(second)


def test_any_text_and_number_has_a_program():
    odd = {"name_of_data": "\ud800", "bits": 2**70, "loss": float("nan")}
    assert program("python \udcff.py", odd) != program("python \udcff.py", {**odd, "bits": 1})
    assert program("python train.py " + "a " * 500_000)
