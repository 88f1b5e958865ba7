"""Budgets for the peak of a rehearsal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memagent.cli import main
from memagent.cli.peak_budget import budgets_of
from memagent.errors import MemagentError, SettingError
from memagent.units import GIB


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "main.json"
    path.write_text(
        json.dumps({"method": "rehearsal", "fits": True, "peak_allocated_bytes": 10 * GIB})
    )
    return path


def test_a_baseline_allows_the_tolerance(report: Path) -> None:
    (budget,) = budgets_of(None, report, "2%")
    budget.check(10 * GIB + GIB // 5)
    with pytest.raises(MemagentError, match=r"peak of 10\.2. GiB exceeds the 10\.00 GiB of .* 2%"):
        budget.check(10 * GIB + GIB // 5 + 20 * 2**20)


def test_a_size_and_a_baseline_are_both_checked(report: Path) -> None:
    size, baseline = budgets_of("9GiB", report, "0%")
    assert (size.limit_bytes, baseline.limit_bytes) == (9 * GIB, 10 * GIB)
    with pytest.raises(MemagentError, match=r"exceeds the budget of 9\.00 GiB"):
        size.check(10 * GIB)


@pytest.mark.parametrize("text", ["2", "two%", "-1%", ""])
def test_a_tolerance_is_a_percentage(report: Path, text: str) -> None:
    with pytest.raises(SettingError, match="write it as 2%"):
        budgets_of(None, report, text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "cannot be read"),
        ("[]", "is not the report of a rehearsal"),
        ('{"peak_allocated_bytes": 5}', "is not the report of a rehearsal"),
    ],
)
def test_a_bad_baseline_is_named_before_the_script_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('started')")
    (tmp_path / "main.json").write_text(text)
    status = main(
        ["rehearse", "--gpu", "t4", "--baseline", f"{tmp_path}/main.json", f"{tmp_path}/train.py"]
    )
    assert status == 2
    assert sentence in capsys.readouterr().err
