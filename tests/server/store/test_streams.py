"""Sparklines: bounded, with every peak, and independent of the batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.wire.messages import Batch, Chunk, RunStart
from memagent_server.store.runs import start_run
from memagent_server.store.samples import add_batch
from memagent_server.store.streams import SPARKLINE_POINTS, current_streams, extend_sparkline


def sparkline_of(values, sizes):
    sparkline, before = {}, 0
    for size in sizes:
        part = values[before : before + size]
        sparkline = extend_sparkline(sparkline, before, part)
        before += len(part)
    return sparkline


def test_the_sparkline_of_a_short_run_has_every_sample():
    assert sparkline_of([3, 1, 2], [2, 1]) == {"width": 1, "peaks": [3, 1, 2]}


def test_the_sparkline_of_a_long_run_is_bounded():
    sparkline = sparkline_of(list(range(1000)), [7] * 143)
    assert sparkline["width"] == 32
    assert sparkline["peaks"] == [*range(31, 999, 32), 999]


@given(
    st.lists(st.one_of(st.none(), st.integers(0, 2**40)), min_size=1, max_size=300),
    st.lists(st.integers(1, 90), min_size=300, max_size=300),
)
def test_the_sparkline_does_not_depend_on_the_batches(values, sizes):
    numbers = [value for value in values if value is not None]
    sparkline = sparkline_of(values, sizes)
    assert sparkline["peaks"] == sparkline_of(values, [1] * 300)["peaks"]
    assert len(sparkline["peaks"]) <= SPARKLINE_POINTS
    assert max((peak for peak in sparkline["peaks"] if peak is not None), default=None) == max(
        numbers, default=None
    )


def test_a_stream_without_a_sparkline_starts_at_the_current_step():
    sparkline = extend_sparkline({}, 100, [5, 6])
    assert sparkline == {"width": 4, "peaks": [*[None] * 25, 6]}


@pytest.mark.parametrize(
    ("columns", "peaks"),
    [
        ({"allocated_bytes": [1], "peak_allocated_bytes": [2]}, [2]),
        ({"peak_allocated_bytes": [None], "allocated_bytes": [1]}, [1]),
        ({"device_used_bytes": [4]}, [4]),
        ({"temperature": [70]}, []),
    ],
)
def test_the_sparkline_uses_the_most_exact_reading(sqlite_database, columns, peaks):
    batch = Batch(seq=0, chunks=[Chunk(stream="host", columns={"step": [1], **columns})])
    with sqlite_database.write() as session:
        start_run(session, RunStart(run_id="r"), 1.0)
        add_batch(session, "r", batch, 1.0)
        (stream,) = current_streams(session, ["r"])
        assert stream.sparkline["peaks"] == peaks
