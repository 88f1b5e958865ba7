"""The grid of ranks over steps: every interval, every rank and every spike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.wire.messages import Batch, Chunk, Device, RunStart
from memagent_server.store.rank_grid import interval_ends, interval_maxima, rank_grid
from memagent_server.store.runs import start_run
from memagent_server.store.samples import add_batch


@pytest.fixture
def grid(sqlite_database):
    """grid({rank: {device: [peak of each step]}}, **arguments)"""

    def grid(ranks, chunk=20, **arguments):
        with sqlite_database.write() as session:
            for rank, devices in ranks.items():
                descriptions = [
                    Device(
                        id=name,
                        kind="host" if name == "host" else "cuda",
                        name=name,
                        limit_bytes=100,
                    )
                    for name in devices
                ]
                start_run(
                    session,
                    RunStart(run_id="r", rank=rank, world_size=len(ranks), devices=descriptions),
                    1.0,
                )
                for name, peaks in devices.items():
                    columns = {
                        "step": list(range(len(peaks))),
                        "time_s": [1.0 * n for n in range(len(peaks))],
                        "peak_allocated_bytes": peaks,
                    }
                    parts = [
                        Chunk(
                            stream=name,
                            columns={
                                key: values[start : start + chunk]
                                for key, values in columns.items()
                            },
                        )
                        for start in range(0, len(peaks), chunk)
                    ]
                    seq = list(devices).index(name)
                    add_batch(session, "r", Batch(rank=rank, seq=seq, chunks=parts), 2.0)
            return rank_grid(session, "r", field="peak_allocated_bytes", **arguments)

    return grid


@given(st.integers(0, 10**9), st.integers(1, 10**6), st.integers(1, 200))
def test_intervals_divide_the_window_evenly(first, steps, columns):
    edges = interval_ends(first, first + steps - 1, columns)
    lengths = [end - before for before, end in zip([first - 1, *edges], edges, strict=False)]
    assert edges[-1] == first + steps - 1
    assert len(edges) == min(steps, columns)
    assert max(lengths) - min(lengths) <= 1 and min(lengths) >= 1


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=80, unique=True),
    st.integers(1, 100),
    st.data(),
)
def test_no_value_is_lost_or_moved_to_a_later_interval(steps, columns, data):
    steps = sorted(steps)
    values = data.draw(st.lists(st.integers(0, 99), min_size=len(steps), max_size=len(steps)))
    edges = interval_ends(0, steps[-1], columns)
    result = interval_maxima(steps, values, 0, edges)
    assert None not in result
    for step, value in zip(steps, values, strict=True):
        at = next(place for place, edge in enumerate(edges) if edge >= step)
        assert result[at] >= value
    assert max(result) == max(values)


def test_each_rank_is_a_row_over_the_same_steps(grid):
    result = grid({0: {"D0": [10] * 100}, 1: {"D1": [20] * 60}}, columns=10)
    assert result.step == list(range(9, 100, 10))
    first, second = result.ranks
    assert (first.rank, first.device, first.limit_bytes, first.max) == (0, "D0", 100, [10] * 10)
    assert second.max == [20] * 6 + [None] * 4
    assert result.time_s == pytest.approx([9.0 + 10 * n for n in range(10)])
    assert result.left_out == 0


def test_a_spike_is_in_its_interval(grid):
    peaks = [10] * 1000
    peaks[777] = 90
    (row,) = grid({0: {"D": peaks}}, columns=20).ranks
    assert [place for place, value in enumerate(row.max) if value == 90] in ([15], [14, 15])


def test_a_smaller_window_has_finer_intervals(grid):
    result = grid({0: {"D": list(range(100))}}, first=40, last=49, columns=60)
    assert result.step == list(range(40, 50))
    assert result.ranks[0].max == list(range(40, 50))


def test_host_memory_is_omitted_if_there_are_gpus(grid):
    result = grid({0: {"host": [1] * 10, "D0": [2] * 10}, 1: {"host": [1] * 10, "D1": [3] * 10}})
    assert [row.device for row in result.ranks] == ["D0", "D1"]


def test_ranks_without_gpus_are_rows(grid):
    assert [row.rank for row in grid({0: {"host": [1]}, 1: {"host": [2]}}).ranks] == [0, 1]


def test_a_run_without_samples_has_no_rows(sqlite_database):
    with sqlite_database.write() as session:
        start_run(session, RunStart(run_id="r"), 1.0)
        assert rank_grid(session, "r", field="x").ranks == []
