"""Changes that are tried from outside of a script."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from memagent.cli.rehearse_view import what_if_lines
from memagent.rehearsal.batch_search import BatchSlot, slot_of
from memagent.rehearsal.launch import Machine, cuda_card
from memagent.rehearsal.report import Rehearsal
from memagent.rehearsal.script import Script
from memagent.rehearsal.what_if import (
    ALLOCATOR_SETTINGS,
    NOT_TRIED,
    ChangedScript,
    WhatIf,
    changed_scripts,
    try_changes,
)
from memagent.units import GIB

MACHINE = Machine(cuda_card("own:24GiB"))
NOW = Rehearsal(MACHINE, "stopped", 3, 10 * GIB, 12 * GIB)
SCRIPTS = [ChangedScript(name, Script("train.py")) for name in ("less", "more", "none")]
CASE = """
import json, sys, torch
from torch import nn
from memagent.rehearsal.script_changes import apply_change

apply_change(sys.argv[1])
model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)))
optimizer = torch.optim.AdamW(model.parameters(), 0.1, betas=(0.9, 0.99), weight_decay=0.5)
calls = []
model[0][0].register_forward_hook(lambda *_: calls.append(torch.is_autocast_enabled("cuda")))
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
print(json.dumps({
    "calls": calls, "bases": [base.__name__ for base in type(optimizer).__mro__],
    "gradients": sum(p.grad is not None for p in model.parameters()),
    "foreach": optimizer.param_groups[0].get("foreach"), "lr": optimizer.param_groups[0]["lr"],
    "fused": optimizer.param_groups[0].get("fused"), "decay": optimizer.param_groups[0]["weight_decay"],
}))
"""


def what_if_of(*reserved: int | None) -> WhatIf:
    """Return the changes with these peaks; None for one that doesn't fit."""
    results: Iterator[Rehearsal] = iter(
        replace(NOW, peak_reserved_bytes=size, peak_allocated_bytes=size - GIB)
        if size is not None
        else replace(NOW, status="oom")
        for size in reserved
    )
    return try_changes(NOW, SCRIPTS[: len(reserved)], lambda _changed: next(results))


def test_the_largest_saving_is_first_and_what_does_not_fit_last() -> None:
    what_if = what_if_of(13 * GIB, None, 8 * GIB)
    heading, columns, *rows = what_if_lines(what_if)
    assert (heading, columns.split("   ")[-1]) == ("what if", "rehearsed in")
    assert [row.split()[0] for row in rows[:3]] == ["none", "less", "more"]
    assert rows[0].split("  ")[1:] != []
    assert "3.00 GiB" in rows[0] and "4.00 GiB" in rows[0] and "8.80 GiB" in rows[0]
    assert "-2.00 GiB" in rows[1] and "-1.00 GiB" in rows[1]
    assert "does not fit" in rows[2] and "–" in rows[2]
    assert len({row.index(" s", len(row) - 3) for row in rows[:3]}) == 1
    assert " ".join(rows[3:]).startswith("not tried: Attention by SDPA")


def test_savings_are_unknown_if_the_script_itself_does_not_fit() -> None:
    what_if = try_changes(replace(NOW, status="oom"), SCRIPTS[:1], lambda _changed: NOW)
    (change,) = what_if.to_dict()["changes"]
    assert change["fits"] and change["allocated_saving_bytes"] is None


def test_an_interrupt_keeps_what_is_known() -> None:
    results = iter([NOW, replace(NOW, status="interrupted"), NOW])
    assert len(try_changes(NOW, SCRIPTS, lambda _changed: next(results)).runs) == 1


def test_allocator_settings_join_those_of_the_user() -> None:
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}
    scripts = list(changed_scripts(BatchSlot(Script("train.py")), environment))
    confs = [s.script.variables["PYTORCH_CUDA_ALLOC_CONF"] for s in scripts if s.script.variables]
    assert confs[0] == "max_split_size_mb:128,expandable_segments:True"
    assert len(confs) == len(ALLOCATOR_SETTINGS) - 1
    assert {s.script.change for s in scripts} >= {"", "autocast", "checkpointing", "adafactor"}


def test_half_the_batch_is_tried_where_it_is_known() -> None:
    slot = slot_of(Script("train.py", ["--batch", "9"]), "batch", {})
    *others, half = changed_scripts(slot, {})
    assert (half.name, half.script.arguments) == ("Batch of 4 instead of 9", ["--batch", "4"])
    assert others[0].script.arguments == ["--batch", "9"]


def test_changes_that_need_more_than_that_are_named() -> None:
    assert "8-bit Adam" in NOT_TRIED and "Activation checkpointing" not in NOT_TRIED


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("checkpointing", {"calls": [False, False]}),
        ("zero_grad", {"gradients": 0}),
        ("optimizer_step", {"foreach": False}),
        ("fused", {"fused": True, "foreach": False}),
        ("adafactor", {"lr": 0.1, "decay": 0.5}),
        ("sgd", {"lr": 0.1, "decay": 0.5}),
    ],
)
def test_a_change_is_made_in_the_script(change: str, expected: dict[str, object]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CASE, change], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert expected.items() <= result.items()
    base = {"adafactor": "Adafactor", "sgd": "SGD"}.get(change, "AdamW")
    assert base in result["bases"]
