"""Summaries of runs for lists and pages."""

from __future__ import annotations

import pytest
from msgspec.structs import asdict
from sqlalchemy import event

from memagent.wire.messages import Batch, Chunk, Device, Event, PredictionMessage, RunStart
from memagent_server.settings import GpuPrices
from memagent_server.store.models import ForecastRow
from memagent_server.store.predictions import add_prediction, list_predictions
from memagent_server.store.run_list import RunQuery, list_runs
from memagent_server.store.runs import get_run, start_run
from memagent_server.store.samples import add_batch
from memagent_server.store.streams import current_streams
from memagent_server.store.summaries import describe, summarize

DEVICES = [
    Device(id="GPU-0", kind="cuda", name="H100", index=0, limit_bytes=1000),
    Device(id="GPU-1", kind="cuda", name="H100", index=1, limit_bytes=1000),
]


@pytest.fixture
def run_id(database):
    with database.write() as session:
        start_run(
            session,
            RunStart(run_id="r", name="gpt", total_steps=9, tags=["a"], devices=DEVICES),
            0.0,
        )
        for seq, (device, used) in enumerate((("GPU-0", 100), ("GPU-1", 900))):
            columns = {
                "step": [1, 2],
                "allocated_bytes": [used + 50, used],
                "parameters_bytes": [7, None],
            }
            add_batch(
                session, "r", Batch(seq=seq, chunks=[Chunk(stream=device, columns=columns)]), 5.0
            )
    return "r"


def forecast(stream, **facts):
    blank = {"at": 1.0, "step": 1, "level": "ok", "oom_probability": 0.0}
    return ForecastRow(run_id=stream.run_id, stream_id=stream.id, **{**blank, **facts})


def test_a_summary_shows_the_stream_that_is_nearest_to_its_limit(database, run_id):
    with database.read() as session:
        (summary,) = summarize(session, [get_run(session, run_id)], public_url="http://box:8420")
    assert asdict(summary) == {
        "id": "r",
        "project": "default",
        "name": "gpt",
        "user": None,
        "host": None,
        "status": "running",
        "created_at": "1970-01-01T00:00:00.000Z",
        "started_at": "1970-01-01T00:00:00.000Z",
        "last_seen_at": "1970-01-01T00:00:05.000Z",
        "finished_at": None,
        "step": 2,
        "total_steps": 9,
        "world_size": 1,
        "tags": ["a"],
        "is_archived": False,
        "sparkline": [950, 900],
        "device": "GPU-1",
        "device_name": "H100",
        "used_bytes": 900,
        "peak_bytes": 950,
        "limit_bytes": 1000,
        "predicted_peak_bytes": None,
        "forecast": None,
        "failure": None,
        "url": "http://box:8420/runs/r",
    }


def test_a_run_without_devices_has_a_summary_too(database):
    with database.write() as session:
        run, _ = start_run(session, RunStart(run_id="r"), 0.0)
        (summary,) = summarize(session, [run])
    assert (summary.device, summary.used_bytes, summary.limit_bytes) == (None, None, None)


def test_it_shows_the_worst_of_the_newest_forecasts(database, run_id):
    with database.write() as session:
        first, second = current_streams(session, [run_id])
        session.add_all(
            [
                forecast(first, level="critical", oom_probability=1.0),
                forecast(first, level="ok"),
                forecast(
                    second, level="warning", oom_probability=0.75, cause="leak", eta_step=88.5
                ),
            ]
        )
    with database.read() as session:
        (summary,) = summarize(session, [get_run(session, run_id)])
    assert asdict(summary.forecast) == {
        "step": 1,
        "level": "warning",
        "oom_probability": 0.75,
        "cause": "leak",
        "eta_step": 88.5,
        "eta_s": None,
    }


def test_it_shows_the_newest_prediction_for_the_shown_device(database, run_id):
    with database.write() as session:
        for device, peak in (("GPU-1", 1), ("GPU-1", 2), ("GPU-0", 3)):
            add_prediction(
                session,
                run_id,
                PredictionMessage(method="formula", device=device, peak_allocated_bytes=peak),
                1.0,
            )
    with database.read() as session:
        (summary,) = summarize(session, [get_run(session, run_id)])
        assert summary.predicted_peak_bytes == 2
        assert [
            prediction.peak_allocated_bytes for prediction in list_predictions(session, run_id)
        ] == [3, 2, 1]


def test_a_repeated_prediction_is_stored_once(database, run_id):
    message = PredictionMessage(
        method="formula", device="GPU-0", peak_allocated_bytes=1, components={"parameters": 1}
    )
    with database.write() as session:
        first, second = (add_prediction(session, run_id, message, now) for now in (1.0, 2.0))
    assert first.id == second.id


def test_a_page_of_runs_needs_as_many_queries_as_one_run(database):
    with database.write() as session:
        for number in range(30):
            start_run(session, RunStart(run_id=f"r{number}", devices=DEVICES), 0.0)
    statements = []
    event.listen(database.engine, "before_cursor_execute", lambda *call: statements.append(call[2]))
    counts = []
    for limit in (1, 30):
        statements.clear()
        with database.read() as session:
            list_runs(session, RunQuery(limit=limit))
        counts.append(len(statements))
    assert counts[0] == counts[1] <= 5


def test_a_description_has_streams_events_and_dropped_counts(database, run_id):
    with database.write() as session:
        events = [Event(kind="mark", step=step, time_s=float(step)) for step in range(300)]
        add_batch(
            session, run_id, Batch(seq=2, events=events, dropped_samples={"queue_full": 3}), 6.0
        )
        add_batch(session, run_id, Batch(seq=0, rank=1, dropped_samples={"queue_full": 4}), 6.0)
    with database.read() as session:
        described = describe(session, get_run(session, run_id), [], GpuPrices({}))
    assert described.dropped_samples == {"queue_full": 7}
    assert len(described.events) == 200
    assert asdict(described.events[0]) == {
        "kind": "mark",
        "rank": 0,
        "step": 299,
        "at": "1970-01-01T00:04:59.000Z",
        "data": {},
    }
    assert [stream.device for stream in described.streams] == ["GPU-0", "GPU-1"]
    assert described.streams[0].latest == {"step": 2, "allocated_bytes": 100, "parameters_bytes": 7}
