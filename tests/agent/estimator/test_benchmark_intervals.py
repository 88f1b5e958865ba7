"""Calibration of the intervals, and their coverage of trainings that they weren't fitted to."""

from __future__ import annotations

from collections import defaultdict

import pytest

from benchmarks.estimator import intervals, sharded
from benchmarks.estimator.corpus import Measured
from benchmarks.estimator.estimators import Prediction
from memagent.estimator.intervals import ratio_table

ROWS = intervals.read()
SEEN, UNSEEN = intervals.halves(ROWS)


def test_trainings_under_fsdp_are_on_the_side_of_their_family():
    for side, is_seen in ((SEEN, True), (UNSEEN, False)):
        families = {row.program for row in side if row.source == sharded.SOURCE}
        assert families and all((name in sharded.SEEN) is is_seen for name in families)


def test_a_program_is_on_one_side_and_the_sides_are_halves():
    seen, unseen = (
        {row.program for row in side if row.source != sharded.SOURCE} for side in (SEEN, UNSEEN)
    )
    assert not seen & unseen and abs(len(seen) - len(unseen)) <= 1


def test_the_package_has_the_table_of_this_corpus():
    """If not: `python -m benchmarks.estimator intervals --write`."""
    assert intervals.calibrate(SEEN, intervals.corpus_hash()) == ratio_table()


@pytest.mark.parametrize("method", ["trace", "formula"])
def test_nine_of_ten_peaks_of_other_programs_lie_within(method):
    held = defaultdict(list)
    for score in intervals.scores(UNSEEN, ratio_table()):
        if score.group.partition(",")[0] == method:
            held[score.level].append(score.is_held)
    assert set(held) == {"allocated", "reserved", "device"}
    for level, each in held.items():
        assert sum(each) >= 0.86 * len(each), (level, sum(each), len(each))


def row(program: str, error: int, group: str = "trace, others") -> Measured:
    prediction = Prediction(1000, passing_bytes=1000, group=group)
    levels = {"allocated": 1000 + error}
    return Measured("here", program, program, levels, predictions={"formula": prediction})


def test_ratios_are_the_quantiles_of_5_and_95_percent():
    rows = [row(f"net {error}", error) for error in range(-50, 51)]
    ratios = intervals.calibrate(rows).groups["trace, others"]
    # of 101 values the 97th from either end: 0.95 x 102 / 101
    assert ratios.allocated == (0.046, 0.046)
    assert (ratios.trainings, ratios.programs) == (101, 101)


def test_a_program_weighs_as_much_as_any_other():
    many = [row("often", 400)] * 60 + [row(f"net {error}", error) for error in range(59)]
    assert intervals.calibrate(many).groups["trace"].allocated[1] < 0.1


def test_corrections_beside_these_trainings_do_not_shorten_the_formulas_interval():
    group = "formula, decoder, stored"
    exact = [row(f"net {number}", 0, group) for number in range(9)]
    assert intervals.calibrate(exact).groups[group].allocated == (0.0, intervals.MIN_ABOVE)
    wide = [row(f"net {number}", 300, group) for number in range(9)]
    assert intervals.calibrate(wide).groups[group].allocated == (0.0, 0.3)


def test_a_group_of_few_programs_takes_the_larger_pool():
    rows = [row(f"net {error}", error, "formula, decoder, stored") for error in range(8)]
    group = "formula, image, stored"
    prediction = Prediction(1000, passing_bytes=1000, group=group)
    rows.append(Measured("here", "vit", "vit", {"allocated": 1000}, predictions={"": prediction}))
    table = intervals.calibrate(rows)
    assert table.groups[group].pool == "formula, stored" and table.groups[group].programs == 9
