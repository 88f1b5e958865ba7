"""The exposition: its bytes, the number of statements, and its refreshes."""

from __future__ import annotations

import gzip
import threading

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from sqlalchemy import event

from memagent.forecast import Forecast
from memagent.wire.messages import Batch, Chunk, Device, PredictionMessage, RunStart
from memagent_server.app import create_app
from memagent_server.metrics import exposition
from memagent_server.metrics.collector import SlowValues, collect
from memagent_server.metrics.exposition import write
from memagent_server.store.forecasts import add_forecasts
from memagent_server.store.predictions import add_prediction
from memagent_server.store.runs import start_run
from memagent_server.store.samples import add_batch
from memagent_server.store.streams import JOB_FACTS, current_streams

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
NOW = 1_000_000.0


def fill(database, run_ids) -> None:
    """Create runs with all exposed values and names that need escaping."""
    for run_id in run_ids:
        device = Device(id="gpu", kind="cuda", name="GPU", limit_bytes=2**34)
        columns = {
            "step": [1, 2], "time_s": [NOW, NOW + 1], "allocated_bytes": [5, 7], "step_s": [0.25, 1e-7], "ooms_total": [0, 1],
            "other_processes_bytes": [3, 3], "phase_forward_peak_bytes": [9, 9],
        }  # fmt: skip
        with database.write() as session:
            start_run(
                session,
                RunStart(run_id=run_id, name='a "b"\\c\nd', user="ana", devices=[device]),
                NOW,
            )
            batch = Batch(
                seq=0,
                chunks=[Chunk(stream="gpu", columns=columns)],
                dropped_samples={"queue_full": 3},
            )
            add_batch(session, run_id, batch, NOW)
            message = PredictionMessage(
                device="gpu", method="trace", peak_allocated_bytes=11, components={"parameters": 4}
            )
            add_prediction(session, run_id, message, NOW)
            (stream,) = current_streams(session, [run_id])
            add_forecasts(
                session,
                [
                    (run_id, stream.id, Forecast(2, oom_probability=p, eta_s=9.0))
                    for p in (0.1, 0.5)
                ],
                NOW,
            )


def lines(answer, name: str) -> list[str]:
    return [line for line in answer.get_data(as_text=True).splitlines() if line.startswith(name)]


def test_it_writes_the_bytes_of_prometheus_client(database):
    fill(database, ["one", "two"])
    scraped = exposition.Scrape(collect(database, NOW, SlowValues(), 10).families, [], 2, 0.0)
    assert write(scraped.families, openmetrics=False) == generate_latest(scraped)
    assert write(scraped.families, openmetrics=True) == generate_openmetrics(scraped)
    families = {
        family.name: family
        for family in text_string_to_metric_families(generate_openmetrics(scraped).decode())
    }
    assert families["memagent_run_info"].samples[0].labels["name"] == 'a "b"\\c\nd'
    newest = families["memagent_oom_probability"].samples
    assert [sample.value for sample in newest] == [0.5, 0.5]
    assert {
        sample.labels["component"] for sample in families["memagent_predicted_bytes"].samples
    } == {"parameters", "peak"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"pod": "train-0", "namespace": "research", "node": "gpu-7"}, ("train-0", "research", "gpu-7", "")),
        ({"slurm_job_id": "4711"}, ("", "", "", "4711")),
        ({"slurm_job_id": 4711, "pod": None, "node": [1]}, ("", "", "[1]", "4711")),
        ({"pod": "x" * 10_000}, ("x" * 253, "", "", "")),
    ],
)  # fmt: skip
def test_the_run_is_described_by_where_its_scheduler_runs_it(database, environment, expected):
    fill(database, ["other"])
    with database.write() as session:
        device = Device(id="gpu", kind="cuda", name="GPU", limit_bytes=2**34)
        start = RunStart(run_id="job", name="job", environment=environment, devices=[device])
        start_run(session, start, NOW)
        chunk = Chunk(stream="gpu", columns={"step": [1], "time_s": [NOW], "allocated_bytes": [5]})
        add_batch(session, "job", Batch(seq=0, chunks=[chunk]), NOW)
    families = {item.name: item for item in collect(database, NOW, SlowValues(), 10).families}
    labels = {
        sample.labels["run_id"]: tuple(sample.labels[name] for name in JOB_FACTS)
        for sample in families["memagent_run_info"].samples
    }
    assert labels == {"job": expected, "other": ("", "", "", "")}


def test_the_number_of_statements_does_not_depend_on_the_runs(database):
    statements, counts = [], []
    event.listen(
        database.engine, "before_cursor_execute", lambda *facts: statements.append(facts[2])
    )
    for first, last in ((0, 3), (3, 30)):
        fill(database, [f"r{number}" for number in range(first, last)])
        statements.clear()
        assert collect(database, NOW, SlowValues(), 100).streams == last
        counts.append(len(statements))
    assert counts[0] == counts[1] <= 8


@pytest.mark.parametrize(
    ("accept", "begins", "ends"),
    [("", "text/plain", "\n"), (OPENMETRICS, "application/openmetrics-text; version=1.0.0", "# EOF\n"),
     ("text/plain;version=1.0.0;escaping=dots", "text/plain; version=1.0.0", "\n")],
)  # fmt: skip
def test_the_format_follows_the_accept_header(sqlite_app, sqlite_database, accept, begins, ends):
    fill(sqlite_database, ["r"])
    client = sqlite_app.test_client()
    client.get("/metrics")  # counted from the next one on
    plain = client.get("/metrics", headers={"Accept": accept})
    assert plain.content_type.startswith(begins) and plain.get_data(as_text=True).endswith(ends)
    assert ("memagent__step{" if "dots" in accept else "memagent_step{") in plain.get_data(
        as_text=True
    )
    small = client.get("/metrics", headers={"Accept": accept, "Accept-Encoding": "gzip"})
    assert small.headers["Content-Encoding"] == "gzip" and len(small.data) < len(plain.data) / 2
    assert gzip.decompress(small.data).count(b"\n") == plain.data.count(b"\n")


def test_streams_above_the_cap_are_omitted_and_counted(sqlite_database, make_settings):
    fill(sqlite_database, ["old", "new"])
    app = create_app(
        make_settings(sqlite_database.url, metrics_streams=1), sqlite_database, clock=lambda: NOW
    )
    response = app.test_client().get("/metrics")
    assert lines(response, "memagent_series_capped") == ["memagent_series_capped 1.0"]
    assert len(lines(response, "memagent_step{")) == len(lines(response, "memagent_run_info{")) == 1


class Slow:
    """An exposition whose build sets `has_begun` and waits for `go_on`."""

    def __init__(self, database, monkeypatch) -> None:
        self.steady, self.builds = 0.0, 0
        self.has_begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self.exposition = exposition.Exposition(
            database, lambda: NOW, lambda: self.steady, 10, CollectorRegistry
        )
        monkeypatch.setattr(exposition, "collect", self.collect)

    def collect(self, *arguments):
        self.builds += 1
        self.has_begun.set()
        assert self.go_on.wait(60)
        return collect(*arguments)


@pytest.fixture
def slow(sqlite_database, monkeypatch) -> Slow:
    fill(sqlite_database, ["one", "two"])
    return Slow(sqlite_database, monkeypatch)


def test_a_scrape_during_a_build_gets_the_last_one(slow):
    last = slow.exposition.get()
    slow.has_begun.clear()
    slow.go_on.clear()
    scrape = threading.Thread(target=slow.exposition.get)
    scrape.start()
    assert slow.has_begun.wait(60)
    assert slow.exposition.get() is last
    slow.go_on.set()
    scrape.join()
    assert slow.builds == 2


def test_many_streams_are_refreshed_by_one_background_thread(slow, monkeypatch):
    monkeypatch.setattr(exposition, "MAX_LIVE_STREAMS", 1)
    first = slow.exposition.get()
    slow.steady += exposition.REFRESH_S / 2
    assert slow.exposition.get() is first and slow.builds == 1
    slow.has_begun.clear()
    slow.go_on.clear()
    slow.steady += exposition.REFRESH_S
    assert [slow.exposition.get() for _ in range(3)] == [first] * 3
    assert slow.has_begun.wait(60)
    slow.go_on.set()
    for thread in threading.enumerate():
        if thread.name == "memagent-exposition":
            thread.join()
    assert slow.exposition.get() is not first and slow.builds == 2


def test_a_slow_value_is_read_rarely():
    now, reads = [0.0], []

    def read() -> int:
        reads.append(now[0])
        now[0] += 1.0
        return len(reads)

    figures = SlowValues(lambda: now[0])
    values = []
    for _ in range(50):
        values.append(figures.get("all", read))
        now[0] += 1.0
    assert reads == [0.0, 21.0, 42.0] and values[0] == 1 and values[-1] == 3
