"""`python -m benchmarks.estimator quantised`: the formula beside kept rehearsals of QLoRA."""

from statistics import median

import pytest

from benchmarks.estimator.__main__ import main
from benchmarks.estimator.quantised import CASES, rows, traced_bytes
from memagent.estimator.trace.isolation import can_fork


def test_the_formula_is_near_the_rehearsed_peak():
    sizes = [abs(row.error_ratio) for row in rows()]
    assert len(sizes) >= 7
    assert median(sizes) <= 0.01 and max(sizes) <= 0.06


@pytest.mark.skipif(not can_fork(), reason="this system cannot fork a tracing process")
@pytest.mark.parametrize(
    "name",
    [
        "mistral, 1 x 512, nf4-double, kbit peft",
        "mistral, 2 x 1024, nf4-double, kbit peft, stored",
        "gemma, 4 x 1024, nf4-double, kbit trl",
    ],
)
def test_the_trace_has_the_rehearsed_peak(name):
    pytest.importorskip("bitsandbytes")
    (row,) = (row for row in rows() if row.case.name == name)
    assert traced_bytes(row.case) == pytest.approx(row.rehearsed, rel=0.001)


def test_each_case_has_a_name_of_its_own():
    assert len({case.name for case in CASES}) == len(CASES)


def test_it_prints_the_kept_rehearsals(capsys):
    assert main(["quantised", "--only", "1 x 512"]) == 0
    out = capsys.readouterr().out
    assert "| mistral, 1 x 512, nf4-double, kbit peft | seen" in out and " seen: median" in out
