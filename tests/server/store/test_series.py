"""Charts: every window of a run in a limited number of points with every spike."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memagent.wire.columns import pack
from memagent.wire.fields import scalar_kind_of
from memagent.wire.messages import Batch, Chunk, RunStart
from memagent_server.schemas.runs import Statistics
from memagent_server.store.buckets import from_stats, merge_to
from memagent_server.store.runs import start_run
from memagent_server.store.samples import add_batch
from memagent_server.store.series import MAX_VALUES, series


@pytest.fixture
def fill(sqlite_database):
    """fill(values, chunk=10): allocated_bytes[i] at step i."""

    def fill(values, *, chunk=10, attempt=0, seqs=None):
        with sqlite_database.write() as session:
            start_run(session, RunStart(run_id="r", attempt=attempt), 1.0)
            starts = list(range(0, len(values), chunk))
            for seq in seqs or range(len(starts)):
                steps = list(range(starts[seq], min(starts[seq] + chunk, len(values))))
                columns = {
                    "step": steps,
                    "time_s": [float(step) for step in steps],
                    "allocated_bytes": [values[step] for step in steps],
                }
                add_batch(
                    session,
                    "r",
                    Batch(seq=seq, attempt=attempt, chunks=[Chunk(stream="host", columns=columns)]),
                    1.0,
                )

    return fill


@pytest.fixture
def ask(sqlite_database):
    def ask(**query):
        with sqlite_database.read() as session:
            return series(session, "r", **{"fields": ["allocated_bytes"], **query})

    return ask


def test_few_samples_are_returned_unchanged(fill, ask):
    fill([5, 7, 6])
    result = ask()
    assert result.bucketed is False
    assert (result.samples, result.step, result.time_s) == (3, [0, 1, 2], [0.0, 1.0, 2.0])
    assert result.series["allocated_bytes"] == Statistics([5, 7, 6], [5, 7, 6], [5, 7, 6])
    assert (result.device, result.attempt, result.rank) == ("host", 0, 0)


@pytest.mark.parametrize("chunk", [1, 10, 1000])
def test_many_samples_are_returned_in_buckets_with_every_spike(fill, ask, chunk):
    values = [100] * 1000
    values[333], values[777] = 999, 1
    fill(values, chunk=chunk)
    result = ask(points=20)
    column = result.series["allocated_bytes"]
    assert result.bucketed is True
    assert (result.samples, len(result.step), result.step[-1]) == (1000, 20, 999)
    assert (max(column.max), min(column.min)) == (999, 1)
    assert column.max.count(999) == column.min.count(1) == 1
    assert result.step == sorted(result.step)


@pytest.mark.parametrize("points", [10, 2000])
@pytest.mark.parametrize(("first", "last"), [(15, 84), (20, 29), (33, 33), (None, 7), (95, None)])
def test_a_window_holds_its_steps_and_no_others(fill, ask, points, first, last):
    fill(list(range(100)), chunk=10)
    result = ask(points=points, first=first, last=last)
    low, high = first or 0, 99 if last is None else last
    assert result.samples == high - low + 1
    assert min(result.series["allocated_bytes"].min) == low
    assert max(result.series["allocated_bytes"].max) == high


def test_summaries_are_used_inside_a_window_and_its_edges_are_exact(fill, ask):
    fill(list(range(1000)), chunk=10)
    result = ask(points=10, first=15, last=984)
    assert (result.samples, len(result.step)) == (970, 10)
    assert (
        min(result.series["allocated_bytes"].min),
        max(result.series["allocated_bytes"].max),
    ) == (15, 984)


def test_an_empty_window_is_empty(fill, ask):
    fill(list(range(10)))
    result = ask(first=500)
    assert (result.samples, result.step, result.series["allocated_bytes"].max) == (0, [], [])


def test_a_rank_or_device_without_samples_is_empty(fill, ask):
    fill([1])
    for query in ({"rank": 3}, {"device": "GPU-0"}, {"attempt": 77}):
        result = ask(**query)
        assert (result.samples, result.step, result.series) == (
            0,
            [],
            {"allocated_bytes": Statistics([], [], [])},
        )


def test_chunks_that_arrived_out_of_order_are_shown_in_order(fill, ask):
    fill(list(range(40)), chunk=10, seqs=[2, 0, 3, 1])
    assert ask().step == list(range(40))


def test_the_newest_attempt_is_the_default(fill, ask):
    fill([1, 2, 3], attempt=5)
    fill([7], attempt=9)
    assert ask().series["allocated_bytes"].last == [7]
    assert ask(attempt=5).series["allocated_bytes"].last == [1, 2, 3]


def test_fields_that_were_never_measured_are_null(fill, ask):
    fill([1, 2])
    assert ask(fields=["reserved_bytes"]).series == {
        "reserved_bytes": Statistics([None] * 2, [None] * 2, [None] * 2)
    }


def test_a_star_selects_all_fields(fill, ask):
    fill([1, 2])
    assert list(ask(fields=["*"]).series) == ["allocated_bytes"]


def test_a_chart_of_many_columns_has_fewer_points(fill, ask):
    fill([*range(5_000)], chunk=500)
    fields = [f"f{number}" for number in range(99)] + ["allocated_bytes"]
    wide = ask(fields=fields, points=5_000)
    assert (wide.samples, len(wide.step)) == (5_000, MAX_VALUES // 100)
    assert max(wide.series["allocated_bytes"].max) == 4_999
    assert len(ask(points=5_000).step) == 5_000


@pytest.mark.parametrize("points", [10, 1000])
def test_scalars_that_are_not_numbers_are_gaps(sqlite_database, ask, points):
    nan = float("nan")
    losses = [1.0, nan, 3.0, nan] * 10
    with sqlite_database.write() as session:
        start_run(session, RunStart(run_id="r"), 1.0)
        for seq in range(20):
            columns = {"step": [2 * seq, 2 * seq + 1], "loss": losses[2 * seq : 2 * seq + 2]}
            chunk = Chunk(stream="scalars", packed=pack(columns, kind_of=scalar_kind_of))
            add_batch(session, "r", Batch(seq=seq, chunks=[chunk]), 1.0)
    column = ask(fields=["loss"], device="scalars", points=points).series["loss"]
    maxima = [value for value in column.max if value is not None]
    assert (min(value for value in column.min if value is not None), max(maxima)) == (1.0, 3.0)
    assert all(
        value is None or math.isfinite(value)
        for values in (column.min, column.max, column.last)
        for value in values
    )


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=200), st.integers(10, 60), st.randoms())
def test_merged_buckets_preserve_count_extremes_and_order(sizes, points, rng):
    stats = [{"x": [(low := rng.randint(0, 99)), low + rng.randint(0, 9), low]} for _ in sizes]
    result = merge_to(from_stats(zip(range(len(sizes)), sizes, stats, strict=True)), points)
    assert len(result) <= points
    assert result.samples == sum(sizes)
    low, high, last = result.column("x")
    assert min(low) == min(of["x"][0] for of in stats)
    assert max(high) == max(of["x"][1] for of in stats)
    assert last[-1] == stats[-1]["x"][2]
    assert result.seqs[-1] == len(sizes) - 1


def test_every_way_of_cutting_into_chunks_gives_the_same_extremes(sqlite_database):
    values = [random.Random(1).randint(0, 10**12) for _ in range(500)]
    with sqlite_database.write() as session:
        for size in (1, 7, 100, 500):
            run_id = f"r{size}"
            start_run(session, RunStart(run_id=run_id), 1.0)
            for seq, first in enumerate(range(0, 500, size)):
                steps = list(range(first, min(first + size, 500)))
                columns = {"step": steps, "allocated_bytes": [values[step] for step in steps]}
                add_batch(
                    session,
                    run_id,
                    Batch(seq=seq, chunks=[Chunk(stream="host", columns=columns)]),
                    1.0,
                )
            result = series(session, run_id, fields=["allocated_bytes"], points=50).series[
                "allocated_bytes"
            ]
            assert (min(result.min), max(result.max), result.last[-1]) == (
                min(values),
                max(values),
                values[-1],
            )
