"""GPU memory that runs had, needed and left unused, on both databases."""

from __future__ import annotations

import pytest

from memagent.estimator.devices import CONTEXT_BYTES
from memagent.units import GIB
from memagent.wire.messages import Batch, Chunk, Device, Finish, RunStart
from memagent_server.settings import GpuPrices
from memagent_server.store.runs import finish_run, start_run
from memagent_server.store.samples import add_batch
from memagent_server.store.waste import MARGIN, WasteSelection, waste

A100 = "NVIDIA A100-SXM4-80GB"
H100 = "NVIDIA H100 80GB HBM3"
HOUR = 3600.0
NEVER = GpuPrices({})


def add_run(database, run_id, *, user="ann", project="vision", name=A100, start=0.0, hours=1.0,
            process=10, used=12, limit=80, ranks=1, device="GPU-0", columns=None):  # fmt: skip
    """Add a run that holds a GPU for some hours; memory in GiB."""
    devices = [
        Device(id=device, kind="cuda", name=name, limit_bytes=limit * GIB),
        Device(id="host", kind="host", name="host", limit_bytes=64 * GIB),
    ]
    readings = columns or {"process_device_bytes": process, "device_used_bytes": used}
    values = {"step": [1], "time_s": [start], "allocated_bytes": [GIB]}
    values |= {key: [value * GIB] for key, value in readings.items()}
    chunks = [Chunk(stream=stream, columns=values) for stream in (device, "host")]
    with database.write() as session:
        for rank in range(ranks):
            message = RunStart(
                run_id=run_id, name=f"{run_id}'s name", rank=rank, world_size=ranks, user=user,
                project=project, devices=devices,
            )  # fmt: skip
            start_run(session, message, start)
            add_batch(session, run_id, Batch(rank=rank, seq=0, chunks=chunks), start)
        for rank in range(ranks):
            end = start + hours * HOUR
            finish_run(session, run_id, Finish(rank=rank, status="completed", finished_at=end), end)


def read(database, prices=NEVER, **selection):
    window = {"since": 0.0, "until": 100 * HOUR, **selection}
    with database.read() as session:
        return waste(session, WasteSelection(**window), prices)


def figures(sums):
    return (sums.gpu_hours, sums.available_gib_hours, sums.needed_gib_hours, sums.unused_gib_hours)


def test_1_only_the_time_within_the_window_counts(database):
    add_run(database, "r", start=10 * HOUR, hours=10)
    assert figures(read(database).total) == pytest.approx((10, 800, 100, 680))
    assert figures(read(database, since=15 * HOUR).total) == pytest.approx((5, 400, 50, 340))
    inside = read(database, since=12 * HOUR, until=13 * HOUR)
    assert figures(inside.total) == pytest.approx((1, 80, 10, 68))
    assert (inside.since, inside.until) == ("1970-01-01T12:00:00.000Z", "1970-01-01T13:00:00.000Z")
    for window in ({"since": 20 * HOUR}, {"until": 10 * HOUR}):
        assert read(database, **window).total.runs == 0


def test_1_a_run_that_arrives_later_counts_when_it_ran(database):
    devices = [Device(id="GPU-0", kind="cuda", name=A100, limit_bytes=80 * GIB)]
    values = {"step": [1], "time_s": [11 * HOUR], "process_device_bytes": [10 * GIB]}
    batch = Batch(
        seq=0, chunks=[Chunk(stream="GPU-0", columns=values | {"allocated_bytes": [GIB]})]
    )
    with database.write() as session:
        start = RunStart(run_id="r", started_at=10 * HOUR, devices=devices)
        start_run(session, start, 90 * HOUR, live=False)
        add_batch(session, "r", batch, 90 * HOUR, live=False)
    assert read(database, since=9 * HOUR, until=12 * HOUR).total.gpu_hours == pytest.approx(1)
    assert read(database, since=12 * HOUR).total.runs == 0


def test_2_ranks_that_share_a_gpu_add_their_needs_and_not_its_time(database):
    add_run(database, "r", ranks=2, process=20, used=45)
    assert figures(read(database).total) == pytest.approx((1, 80, 40, 35))
    assert read(database).total.peak_bytes == 40 * GIB


def test_3_without_a_list_of_processes_the_need_is_reserved_and_a_context(database):
    add_run(database, "reserved", columns={"peak_reserved_bytes": 30, "peak_allocated_bytes": 20})
    add_run(database, "allocated", columns={"peak_allocated_bytes": 20})
    rows = {row.run: row for row in read(database, by=("run",)).rows}
    assert rows["reserved"].peak_bytes == 30 * GIB + CONTEXT_BYTES
    assert rows["allocated"].peak_bytes == 20 * GIB + CONTEXT_BYTES


def test_4_without_a_reading_of_the_device_nobody_but_the_run_used_it(database):
    add_run(database, "r", columns={"process_device_bytes": 30})
    assert figures(read(database).total) == pytest.approx((1, 80, 30, 50))


def test_no_need_exceeds_the_memory_of_the_gpu(database):
    add_run(database, "r", process=90, used=95)
    assert figures(read(database).total) == pytest.approx((1, 80, 80, 0))


@pytest.mark.parametrize(
    ("need", "smallest"), [(35, "NVIDIA A100-SXM4-40GB"), (36, "NVIDIA A40"), (75, None)]
)
def test_5_the_smallest_card_has_room_for_the_need_and_the_margin(database, need, smallest):
    add_run(database, "r", process=need, used=need)
    result = read(database)
    assert result.margin == MARGIN == 0.1
    assert result.rows[0].smallest_card == smallest
    assert result.rows[0].too_large_gpu_hours == (0 if smallest is None else 1)


def test_the_neediest_run_decides_a_rows_card_and_each_run_whether_its_own_is_too_large(database):
    add_run(database, "small", hours=3, process=10)
    add_run(database, "large", hours=1, process=70)
    (row,) = read(database).rows
    assert (row.runs, row.smallest_card, row.too_large_gpu_hours) == (2, None, 3)


def test_rows_are_the_combinations_of_the_keys(database):
    add_run(database, "a", user="ann", project="vision", name=A100)
    add_run(database, "b", user="ann", project="nlp", name=H100, hours=2)
    add_run(database, "c", user=None, project="nlp", name=H100, hours=4)
    every = [(row.user, row.project, row.card, row.runs) for row in read(database).rows]
    assert every == [(None, "nlp", H100, 1), ("ann", "nlp", H100, 1), ("ann", "vision", A100, 1)]
    assert [(row.user, row.runs) for row in read(database, by=("user",)).rows] == [
        (None, 1),
        ("ann", 2),
    ]
    assert [(row.card, row.project) for row in read(database, by=("card",)).rows] == [
        (H100, None),
        (A100, None),
    ]
    assert read(database, project="vision").total.runs == 1


@pytest.mark.parametrize("sort", ["unused_gib_hours", "cost", "too_large_gpu_hours", "gpu_hours"])
@pytest.mark.parametrize("by", [("run",), ("user", "run")])
def test_runs_are_ordered_and_cut_and_the_total_has_all(database, sort, by):
    for number in range(1, 6):
        card = H100 if number % 2 else A100
        add_run(database, f"r{number}", name=card, hours=number, process=7 * number, used=70)
    prices = GpuPrices({"H100": 4.0, "A100": 1.0}, "EUR")
    every = read(database, prices, by=by, sort=sort)
    ordered = [getattr(row, sort) for row in every.rows]
    assert len(ordered) == 5 and ordered == sorted(ordered, reverse=True)
    cut = read(database, prices, by=by, sort=sort, limit=2)
    assert cut.rows == every.rows[:2] and cut.left_out == 3
    assert cut.total == every.total and cut.total.runs == 5
    assert cut.rows[0].run_name == f"{cut.rows[0].run}'s name"


def test_the_cost_is_unknown_unless_all_gpus_have_a_price(database):
    add_run(database, "a", name=A100, hours=2)
    prices = GpuPrices({"A100": 1.5}, "EUR")
    assert (read(database, prices).total.cost, read(database, prices).currency) == (3.0, "EUR")
    add_run(database, "b", name=H100)
    assert (read(database, prices).total.cost, read(database, prices).currency) == (None, None)
    assert [row.cost for row in read(database, prices, by=("card",)).rows] == [3.0, None]
    assert read(database).total.cost is None


def test_runs_without_a_gpu_or_a_limit_are_left_out(database):
    add_run(database, "r", limit=0)
    assert (read(database).total.runs, read(database).rows) == (0, [])
