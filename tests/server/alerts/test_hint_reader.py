"""Hints of the agent reach the forecaster, whenever they arrive."""

from __future__ import annotations

import pytest

from memagent.forecast import Hints
from memagent.wire.messages import Batch, Device, Event, PredictionMessage, RunStart
from memagent_server.alerts.hint_reader import RunHints, secondary_hosts
from memagent_server.store.evaluation import StreamHead
from memagent_server.store.predictions import add_prediction
from memagent_server.store.runs import start_run
from memagent_server.store.samples import add_batch

GIB = 2**30


def flat(step: int) -> float:
    return 30.0


def cause(bench) -> str | None:
    alerts = bench.alerts()
    return alerts[0].data["cause"] if alerts else None


def test_state_still_to_come_is_known_before_the_first_step(bench):
    bench.start()
    bench.worker.evaluate()  # the run is there, its samples are not
    hints = Event(kind="hints", data={"optimizer_state_bytes": {"host": 20 * GIB}})
    bench.feed(0, 1, flat, seq=0, events=(hints,))
    bench.worker.evaluate()
    assert cause(bench) == "optimizer_state"


def test_a_preflight_during_a_run_is_read(bench):
    bench.start()
    bench.feed(0, 100, flat, seq=0)
    bench.worker.evaluate()
    assert cause(bench) is None
    bench.feed(
        100,
        110,
        flat,
        seq=1,
        events=(Event(kind="preflight", data={"eval_bytes": {"host": 15 * GIB}}),),
    )
    bench.worker.evaluate()
    assert cause(bench) == "eval"


def test_invalid_hints_and_those_of_other_ranks_or_launches_are_ignored(bench):
    bench.start()
    with bench.database.write() as session:
        data = Event(kind="hints", data={"eval_bytes": {"host": 15 * GIB}})
        add_batch(session, "r", Batch(seq=0, rank=1, events=[data]), bench.now)
    bench.feed(
        0,
        100,
        flat,
        seq=0,
        events=(Event(kind="hints", data={"eval_bytes": "all", "epoch_steps": -1}),),
    )
    bench.worker.evaluate()
    assert cause(bench) is None


def test_a_prediction_reaches_a_running_forecaster(bench):
    bench.start()
    bench.feed(0, 10, flat, seq=0)
    bench.worker.evaluate()
    with bench.database.write() as session:
        add_prediction(
            session, "r", PredictionMessage(method="formula", peak_allocated_bytes=7), bench.now
        )
    bench.feed(10, 20, flat, seq=1)
    bench.worker.evaluate()
    (evaluation,) = bench.worker._evaluator._evaluations.values()
    assert evaluation.forecaster._knowledge.predicted_peak_bytes == 7


def first_page(bench, grows: str | None) -> int:
    """Return the step at which growth is paged of which the agent's leak finder says this."""
    bench.start()
    for number in range(60):
        found = {"grows": {"host": grows}} if number == 5 and grows else {"epoch_steps": None}
        hints = Event(kind="hints", data=found)
        bench.feed(20 * number, 20 * number + 20, leak, seq=number, events=(hints,))
        bench.worker.evaluate()
        if bench.notified_states():
            return bench.alerts()[0].first_step
    return 1200


def leak(step: int) -> float:
    return 10 + 0.02 * step


@pytest.mark.parametrize(("grows", "pages_at"), [(None, 800), ("list", 560), ("cache", 1200)])
def test_what_the_leak_finder_found_counts_on_the_server(bench, grows, pages_at):
    """The limit is reached at step 1500: a list pages after a third, a cache close to it."""
    assert first_page(bench, grows) == pytest.approx(pages_at, abs=40)


def test_the_host_of_a_gpu_rank_runs_out_of_host_memory(bench):
    devices = [
        Device(id="gpu", kind="cuda", name="A100", limit_bytes=80 * GIB),
        Device(id="host", kind="host", name="host", limit_bytes=40 * GIB),
    ]
    with bench.database.write() as session:
        start_run(session, RunStart(run_id="r", devices=devices), bench.now)
    bench.feed(0, 1200, lambda step: 10 + 0.02 * step, seq=0)
    bench.worker.evaluate()
    assert cause(bench) == "host_memory"


# Without a store


def stream(number: int = 1, rank: int = 0, attempt: int = 0, **fields) -> StreamHead:
    values = {
        "run_id": "r", "run_born_at": 0.0, "device": "host", "kind": "host", "chunks": 0,
        "last_step": None, "peak_bytes": None, "limit_bytes": None, "limit_source": None,
        "samples": 0, **fields,
    }  # fmt: skip
    return StreamHead(id=number, rank=rank, attempt=attempt, **values)


def test_hints_of_a_rank_and_launch_are_merged():
    run = RunHints()
    run.add_event(1, 7, {"epoch_steps": 5})
    run.add_event(1, 7, {"max_input_size": 64})
    assert run.hints(stream(rank=1, attempt=7), 900) == Hints(900, 5, 64)
    assert run.hints(stream(rank=1, attempt=8), None) == Hints()
    assert run.hints(stream(rank=0, attempt=7), 900) == Hints(total_steps=900)
    assert (run.last_event, run.last_prediction) == (0, 0)


def test_the_scripts_planned_steps_count_before_the_runs():
    run = RunHints()
    run.add_event(0, 0, {"total_steps": 40})
    assert run.hints(stream(), 900).total_steps == 40


def test_a_traced_prediction_counts_before_a_formulas_in_any_order():
    for methods in (["trace", "formula"], ["formula", "trace"]):
        run = RunHints()
        for method in methods:
            run.add_prediction(0, "host", method, 10 if method == "trace" else 20)
        assert run.hints(stream(), None).predicted_peak_bytes == {"host": 10}
    run = RunHints()
    run.add_prediction(0, "host", "formula", 20)
    assert run.hints(stream(), None).predicted_peak_bytes == {"host": 20}
    assert run.hints(stream(rank=1), None).predicted_peak_bytes == {}
    assert run.hints(stream(device="gpu"), None).predicted_peak_bytes == {}


def test_a_host_is_secondary_if_its_rank_and_launch_have_a_gpu():
    streams = [
        stream(1),
        stream(2, device="gpu", kind="cuda"),
        stream(3, rank=1),
        stream(4, rank=1, device="scalars", kind="scalars"),
        stream(5, attempt=1),
        stream(6, run_id="other"),
        stream(7, rank=2, device="mps", kind="mps"),
        stream(8, rank=2),
    ]
    assert secondary_hosts(streams) == {1, 8}
    assert secondary_hosts(reversed(streams)) == {1, 8}
