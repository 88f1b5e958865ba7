"""`python -m benchmarks.estimator sharded`: the formula beside kept rehearsals of FSDP."""

from statistics import median

import pytest

from benchmarks.estimator.__main__ import main
from benchmarks.estimator.sharded import CASES, SEEN, rows


@pytest.fixture(scope="module")
def errors():
    """Return the errors by whether the rules were written beside the family."""
    found = list(rows())
    return {
        seen: [abs(row.error_ratio) for row in found if (row.case.family in SEEN) is seen]
        for seen in (True, False)
    }


@pytest.mark.parametrize(
    ("seen", "middle", "worst"), [(True, 0.005, 0.04), (False, 0.02, 0.08)], ids=["seen", "unseen"]
)
def test_the_formula_is_near_the_rehearsed_peak(errors, seen, middle, worst):
    assert len(errors[seen]) >= 12
    assert median(errors[seen]) <= middle and max(errors[seen]) <= worst


def test_each_case_has_a_name_of_its_own():
    assert len({case.name for case in CASES}) == len(CASES)


def test_it_prints_both_halves(capsys):
    assert main(["sharded", "--only", "mistral"]) == 0
    out = capsys.readouterr().out
    assert "| mistral, 2 x 1024, 8 ranks | torch 2.4.1" in out and " seen: median" in out
