"""Samples streamed as stored are all there, once, in order, whatever compaction does meanwhile."""

from __future__ import annotations

import pytest

from memagent.arrays.chunk_arrays import listed
from memagent.arrays.sample_blocks import block_of, joined
from memagent.wire.messages import Batch, Chunk, RunStart
from memagent.wire.sample_stream import MEDIA_TYPE, decode_frames
from memagent_server.store.compaction import compact_run
from memagent_server.store.models import ChunkRow
from memagent_server.store.runs import start_run
from memagent_server.store.sample_stream import SampleQuery, sample_frames
from memagent_server.store.samples import add_batch

STEPS = 1280
FLUSH = 16


def columns_of(steps):
    return {
        "step": list(steps),
        "time_s": [1e9 + step / 7 for step in steps],
        "step_s": [1 / 7] * len(steps),
        "allocated_bytes": [2**30 + step * step for step in steps],
        "power_w": [None if step % 5 else step / 3 for step in steps],
    }


@pytest.fixture
def database_with_run(database):
    """Two ranks, each of 80 small chunks, and scalars of rank 0."""
    with database.write() as session:
        for rank in (0, 1):
            start_run(session, RunStart(run_id="r", rank=rank, world_size=2), 1.0)
            flushes = [range(first, first + FLUSH) for first in range(0, STEPS, FLUSH)]
            chunks = [Chunk(stream="host", columns=columns_of(steps)) for steps in flushes]
            if rank == 0:
                loss = {"step": [1, 2], "time_s": [1.0, 2.0], "loss": [0.5, 0.25]}
                chunks.append(Chunk(stream="scalars", columns=loss))
            add_batch(session, "r", Batch(rank=rank, seq=0, chunks=chunks), 2.0)
    return database


def rows_of(pieces, first=None, last=None):
    blocks = [block_of(frame, None, first, last) for frame in decode_frames(pieces)]
    columns, _ = joined([block for block in blocks if block is not None], None)
    return {name: listed(values, present) for name, (values, present) in columns.items()}


def check_whole(rows):
    assert rows["rank"] == [0] * STEPS + [1] * STEPS
    for name, values in columns_of(range(STEPS)).items():
        assert rows[name] == values * 2, name


@pytest.mark.parametrize("with_zstd", [True, False])
@pytest.mark.parametrize("is_compacted", [False, True])
def test_every_sample_is_streamed(database_with_run, is_compacted, with_zstd):
    if is_compacted:
        compact_run(database_with_run, "r")
    pieces = sample_frames(database_with_run, "r", SampleQuery(), with_zstd=with_zstd)
    check_whole(rows_of(pieces))


def test_compaction_between_two_pages_repeats_and_loses_nothing(database_with_run):
    pieces = sample_frames(database_with_run, "r", SampleQuery())
    first = next(pieces)
    compact_run(database_with_run, "r")
    check_whole(rows_of([first, *pieces]))


def test_ranks_steps_and_scalars_are_chosen(database_with_run):
    query = SampleQuery(ranks=(1,), first=100, last=120)
    pieces = list(sample_frames(database_with_run, "r", query))
    assert len(pieces) == 1 + 2  # chunks of 96 to 111 and 112 to 127, and the end
    rows = rows_of(pieces, 100, 120)
    assert rows["step"] == list(range(100, 121))
    assert set(rows["rank"]) == {1}
    scalars = rows_of(sample_frames(database_with_run, "r", SampleQuery(of_scalars=True)))
    assert scalars["loss"] == [0.5, 0.25]


def test_deleted_samples_are_left_out(database_with_run):
    with database_with_run.write() as session:
        session.query(ChunkRow).filter(ChunkRow.first_step < 640).update({"packed": b""})
    rows = rows_of(sample_frames(database_with_run, "r", SampleQuery()))
    assert rows["step"] == list(range(640, STEPS)) * 2


def test_the_route_streams_them(client):
    client.post("/api/v1/runs", json={"run_id": "r"})
    chunk = {"stream": "host", "columns": {"step": [1, 2], "time_s": [1.0, 2.0]}}
    client.post("/api/v1/runs/r/batches", json={"seq": 0, "chunks": [chunk]})
    for codec in ("zstd", "zlib"):
        answer = client.get(f"/api/v1/runs/r/samples?codec={codec}&ranks=0,1")
        assert (answer.status_code, answer.mimetype) == (200, MEDIA_TYPE)
        assert rows_of([answer.data])["step"] == [1, 2]
    assert client.get("/api/v1/runs/nobody/samples").status_code == 404
    assert client.get("/api/v1/runs/r/samples?ranks=x").status_code == 422
