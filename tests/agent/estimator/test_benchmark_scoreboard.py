"""The measures of the scoreboard, worked out by hand."""

from __future__ import annotations

import pytest

from benchmarks.estimator import scoreboard
from benchmarks.estimator.score import Result

GIB = 2**30
CARDS = {"one": 80 * GIB, "two": 80 * GIB, "died": 80 * GIB}


def result(case: str, predicted: float | None, true: float | None, **facts) -> Result:
    sizes = [None if size is None else round(size * GIB) for size in (true, predicted)]
    return Result("strangers", "allocated", case, "memagent, formula", *sizes, **facts)


def test_a_prediction_below_the_need_fails_and_conserves_nothing():
    rows = [result("one", 44, 40), result("two", 30, 40)]
    standing = scoreboard.standing(rows, CARDS, "ours")
    assert standing.median_error_ratio == pytest.approx((0.1 + 0.25) / 2)
    assert standing.failure_ratio == 0.5
    assert standing.conserved_bytes == pytest.approx((80 - 44) / 2 * GIB)


def test_a_run_that_died_conserves_its_card_if_that_was_predicted():
    dead = {"died_at_bytes": 80 * GIB}
    right, wrong = result("died", 81, None, **dead), result("died", 79, None, **dead)
    judged = [scoreboard.standing([row], CARDS, "ours") for row in (right, wrong)]
    assert [one.failure_ratio for one in judged] == [0, 1]
    assert [one.conserved_bytes for one in judged] == [80 * GIB, 0]
    assert scoreboard.standing([right, wrong], CARDS, "ours").conserved_bytes == 40 * GIB


def test_a_run_that_fits_but_was_predicted_to_die_is_a_failure():
    standing = scoreboard.standing([result("one", 90, 40)], CARDS, "ours")
    assert (standing.failure_ratio, standing.conserved_bytes) == (1, 0)


def test_an_estimator_without_a_prediction_has_no_measures():
    standing = scoreboard.standing([result("one", None, 40)], CARDS, "ours")
    assert (standing.runs, standing.without, standing.median_error_ratio) == (0, 1, None)
    assert standing.row() == "| ours | 0 | - | - | - |"


def test_the_upper_end_is_judged_too_where_there_is_an_interval():
    rows = [result("one", 38, 40, low_bytes=36 * GIB, high_bytes=42 * GIB)]
    by_name = {one.estimator: one for one in scoreboard.standings(rows, CARDS)}
    assert by_name["memagent, formula"].failure_ratio == 1
    assert by_name["memagent, formula, upper end"].failure_ratio == 0
    assert by_name["torch MemTracker"].runs == 0


def test_the_table_says_what_could_not_be_installed():
    lines = scoreboard.printed([]).splitlines()
    assert lines[0].startswith("| | runs | MRE") and lines[-1].startswith("Not installable: xMem")


def test_the_docs_have_a_place_for_the_table():
    text = scoreboard.DOCS.read_text()
    assert text.index("<!-- scoreboard -->") < text.index("<!-- end of scoreboard -->")
