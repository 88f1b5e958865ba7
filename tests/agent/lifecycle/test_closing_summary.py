"""The end of a run in four lines: status, peak, what was noteworthy, where to look."""

from __future__ import annotations

from itertools import count

import pytest
import torch

import memagent
from memagent.lifecycle.closing_summary import closing_summary
from memagent.units import GIB, MIB

SUSPECT = {"file": "/src/train.py", "line": 17, "holder": "kept: list of 9", "bytes_per_step": MIB}
RISK = {"level": "warning", "cause": "tail"}


def summary(peak=6 * GIB, limit=8 * GIB, predicted=5 * GIB, is_first=True, **changes):
    report = {
        "status": "completed",
        "steps": 1200,
        "peaks": {"cuda:0": {"peak_allocated_bytes": peak, "limit_bytes": limit}},
        "prediction": {"peak_allocated_bytes": predicted} if predicted else None,
        "suspects": [],
        "forecast": None,
        "dropped_samples": {},
    }
    text = closing_summary(
        {**report, **changes}, "http://host/runs/a", ("/src",), is_first=is_first
    )
    return text.splitlines()


def test_it_has_four_lines():
    assert summary() == [
        "completed after 1,200 steps",
        "  peak: 6.00 GiB of 8.00 GiB (75 %), predicted 5.00 GiB",
        "  noteworthy: nothing",
        "  more: http://host/runs/a",
    ]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"suspects": [SUSPECT, SUSPECT], "forecast": RISK},
            "train.py:17 keeps kept: list of 9, 1.0 MiB more each step",
        ),
        ({"suspects": [{**SUSPECT, "bytes_per_step": None}]}, "train.py:17 keeps kept: list of 9"),
        ({"forecast": RISK}, "it was about to run out of memory (cause: tail)"),
        ({"forecast": {"level": "notice", "cause": "tail"}}, "nothing"),
        ({"peak": 7.9 * GIB, "predicted": GIB}, "102 MiB were left at the peak"),
        ({"predicted": 2 * GIB}, "the peak was 3.0 times the prediction"),
        ({"dropped_samples": {"full": 1_500, "late": 1}}, "1,501 samples were dropped"),
    ],
)
def test_it_names_the_most_important(changes, text):
    assert summary(**changes)[2] == f"  noteworthy: {text}"


def test_it_does_without_limit_prediction_and_peak():
    lines = summary(peak=None, limit=None, predicted=None, steps=1)
    assert lines[:2] == ["completed after 1 step", "  peak: –"]


def test_a_later_run_of_the_process_needs_one_line():
    [line] = summary(is_first=False)
    assert line == (
        "completed after 1,200 steps, peak 6.00 GiB of 8.00 GiB (75 %), predicted 5.00 GiB;"
        " more: http://host/runs/a"
    )
    assert len(summary(is_first=False, forecast=RISK)) == 4


def train(steps):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with memagent.attach(model, optimizer, predict=False) as run:
        for _ in range(steps):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        yield
    run.finish()


def test_a_run_prints_it_once_at_its_end(capfd, monkeypatch):
    monkeypatch.setattr("memagent.lifecycle.closing_summary._printed", count())
    trial = train(3)
    next(trial)
    assert "completed" not in capfd.readouterr().err
    next(trial, None)
    assert capfd.readouterr().err.count("memagent: completed after 3 steps\n  peak: ") == 1
    list(train(4))
    assert capfd.readouterr().err.count("memagent: completed after 4 steps, peak ") == 1
