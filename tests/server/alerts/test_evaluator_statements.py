"""Cost of a turn with many runs: a few statements, for any number of them."""

from __future__ import annotations

import pytest
from sqlalchemy import event

from memagent.wire.messages import Event, PredictionMessage
from memagent_server.store.predictions import add_prediction


@pytest.fixture
def statements(database):
    """Every statement that reaches the database, as text."""
    sql: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *facts: sql.append(facts[2]))
    return sql


def flat(step: int) -> float:
    return 20.0


def tell(bench, run_id: str, seq: int) -> None:
    """New samples, a hint and a prediction."""
    hint = Event(kind="hints", data={"epoch_steps": 100 + seq})
    bench.feed(10 * seq, 10 * seq + 10, flat, seq=seq, run_id=run_id, events=(hint,))
    with bench.database.write() as session:
        response = PredictionMessage(method="formula", peak_allocated_bytes=7 + seq)
        add_prediction(session, run_id, response, bench.now)


@pytest.mark.parametrize("has_news", [True, False])
def test_a_turn_makes_as_many_statements_for_thirty_runs_as_for_three(bench, statements, has_news):
    counts, fed = [], {}
    for runs in (3, 30):
        for number in range(len(fed), runs):
            bench.start(f"r{number}")
            fed[f"r{number}"] = 0
        for cycle in range(
            3
        ):  # the first begins evaluations and writes first forecasts, the second writes no more
            if cycle < 2 or has_news:
                for run_id, seq in fed.items():
                    tell(bench, run_id, seq)
                    fed[run_id] += 1
            bench.now += 10  # so that the rules about whole runs are asked as well
            statements.clear()
            bench.worker.evaluate()
        counts.append(len(statements))
    assert counts[0] == counts[1] < 20
    evaluations = bench.worker._evaluator._evaluations.values()
    assert len(evaluations) == 30 and all(
        evaluation.forecaster._knowledge.epoch_steps >= 101 for evaluation in evaluations
    )
