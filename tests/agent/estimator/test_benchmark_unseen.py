"""The cases that no rule was written beside: their kept rows, and what the formula says now."""

from __future__ import annotations

import pytest

from benchmarks.estimator import configurations, unseen

ROWS = [(versions, row) for versions, rows in unseen.read().items() for row in rows]


def test_no_case_is_one_of_the_seen_models() -> None:
    models = [model for model, _ in unseen.CASES]
    assert len(set(models)) == len(models)
    assert not set(models) & set(configurations.MODELS)


@pytest.mark.parametrize(
    ("versions", "row"), [pytest.param(*pair, id=pair[1].model) for pair in ROWS]
)
def test_the_formula_is_no_worse_than_when_it_was_asked_first(
    versions: str, row: unseen.Row
) -> None:
    version = versions.split("transformers ")[1].partition(",")[0]
    now = unseen.formula_of(row.model, row.options, version)
    if row.first is None:
        assert now is None or now[1][0] <= row.traced <= now[1][1]
    else:
        assert now is not None
        first = abs(row.first / row.traced - 1)
        assert abs(now[0] / row.traced - 1) <= max(first, 0.01) + 1e-6
