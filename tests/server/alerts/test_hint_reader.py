"""Hints of the agent reach the forecaster, whenever they arrive."""

from __future__ import annotations

from memagent.wire.messages import Batch, Device, Event, PredictionMessage, RunStart
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
    assert evaluation.forecaster._predicted_peak == 7


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
