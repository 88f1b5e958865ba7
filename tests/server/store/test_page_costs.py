"""Costs of thresholds over ended runs, named after the rules of the module's docstring."""

from __future__ import annotations

import pytest

from memagent.forecast import Forecast
from memagent.wire.messages import Finish, RunStart
from memagent_server.store.forecasts import add_forecasts
from memagent_server.store.models import StreamRow
from memagent_server.store.page_costs import EndedRun, ended_runs, threshold_costs
from memagent_server.store.runs import finish_run, start_run

RUNS = [
    EndedRun(has_died=True, probability=0.94),
    EndedRun(has_died=True, probability=0.63),
    EndedRun(has_died=False, probability=0.63),
    EndedRun(has_died=False, probability=0.32),
    EndedRun(has_died=True, probability=0.0),
]


def test_2_a_page_costs_its_share_and_a_death_without_one_a_run():
    rows = threshold_costs(RUNS, 0.3)
    figures = [(row.threshold, row.pages, row.needless, row.missed) for row in rows]
    assert figures == [
        (0.25, 4, 2, 1), (0.3, 4, 2, 1), (0.4, 3, 1, 1), (0.5, 3, 1, 1), (0.65, 1, 0, 2), (0.9, 1, 0, 2)
    ]  # fmt: skip
    assert [row.cost for row in rows] == pytest.approx([2.2, 2.2, 1.9, 1.9, 2.3, 2.3])
    assert [row.threshold for row in rows if row.is_own] == [0.3]


def test_2_dearer_pages_raise_every_cost_and_not_the_counts():
    cheap, dear = (threshold_costs(RUNS, cost) for cost in (0.25, 0.9))
    assert [row.pages for row in cheap] == [row.pages for row in dear]
    assert all(low.cost < high.cost for low, high in zip(cheap, dear, strict=True))


def test_without_runs_there_is_no_cost():
    assert threshold_costs([], 0.25) == []


def test_1_a_run_counts_by_the_likeliest_forecast_that_pages_or_would(database):
    page = Forecast(200, "warning", 0.6, "leak", 300.0, growing_since_step=5)
    demoted = Forecast(200, "notice", 0.5, "leak", 390.0, growing_since_step=5)
    far = Forecast(200, "notice", 0.9, "leak", 500.0, growing_since_step=5)
    calm = Forecast(210, "ok", 0.3)
    ends = {
        "died": ("oom", [calm, page, demoted]),
        "lived": ("completed", [demoted, far, calm]),
        "quiet": ("failed", [far, calm]),
        "silent": ("completed", []),
        "going": (None, [page]),
    }
    with database.write() as session:
        for number, (run_id, (status, forecasts)) in enumerate(ends.items()):
            start_run(session, RunStart(run_id=run_id, project=run_id), 1.0, live=True)
            stream = StreamRow(
                run_id=run_id, rank=0, attempt=0, device="gpu", name="gpu", kind="cuda", is_current=True
            )  # fmt: skip
            session.add(stream)
            session.flush()
            add_forecasts(session, [(run_id, stream.id, one) for one in forecasts], 2.0)
            if status:
                finish_run(
                    session, run_id, Finish(status=status, step=220), 10.0 + number, live=True
                )
    with database.read() as session:
        assert ended_runs(session, 5.0) == [
            EndedRun(False, 0.0),
            EndedRun(False, 0.5),
            EndedRun(True, 0.6),
        ]
        assert ended_runs(session, 5.0, "lived") == [EndedRun(False, 0.5)]
        assert ended_runs(session, 11.5) == [EndedRun(False, 0.0)]
