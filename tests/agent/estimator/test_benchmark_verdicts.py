"""`python -m benchmarks.estimator verdicts`: wrong verdicts on measured trainings."""

from __future__ import annotations

import pytest

from benchmarks.estimator import verdicts
from benchmarks.estimator.__main__ import main
from benchmarks.estimator.verdicts import Verdict

JUDGED = list(verdicts.verdicts())


@pytest.mark.parametrize("method", ["formula", "trace"])
def test_few_verdicts_on_trainings_that_no_interval_was_fitted_to_are_wrong(method: str) -> None:
    unseen = [one for one in JUDGED if one.method == method and not one.is_seen]
    died = [one for one in unseen if one.dies]
    lived = [one for one in unseen if not one.dies]
    assert len(died) > 700 and len(lived) > 1000
    assert sum(one.outcome == "fits" for one in died) <= 0.011 * len(died)
    assert sum(one.outcome == "won't fit" for one in lived) <= 0.03 * len(lived)


def test_no_published_run_that_died_fits_its_card() -> None:
    deaths = list(verdicts.published_deaths())
    assert len(deaths) == 8 and all(one.outcome == "won't fit" for one in deaths)


def test_a_tight_verdict_is_never_wrong() -> None:
    judged = [Verdict("formula", False, dies, "tight") for dies in (True, False)]
    assert list(verdicts.lines(judged))[-1] == "| formula | no | 1 | 0.0 | 1 | 0.0 | 100.0 |"


def test_wrong_ones_are_counted_by_what_happens() -> None:
    judged = [
        Verdict("trace", True, True, "fits"), Verdict("trace", True, True, "won't fit"),
        Verdict("trace", True, False, "won't fit"), Verdict("trace", True, False, "fits"),
    ]  # fmt: skip
    assert list(verdicts.lines(judged))[-1] == "| trace | yes | 2 | 50.0 | 2 | 50.0 | 0.0 |"


def test_it_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verdicts"]) == 0
    assert "| formula, published deaths | no | 8 | 0.0 |" in capsys.readouterr().out
