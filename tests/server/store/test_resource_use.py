"""GPU time, energy and cost of runs, of plain values and from the store."""

from __future__ import annotations

import pytest

from memagent.wire.messages import Batch, Chunk, Device, Finish, RunStart
from memagent_server.schemas.runs import ResourceUse
from memagent_server.settings import GpuPrices
from memagent_server.store.resource_use import GpuUse, resource_use, total_use
from memagent_server.store.runs import finish_run, start_run
from memagent_server.store.samples import add_batch

H100 = "NVIDIA H100 80GB HBM3"
PRICES = GpuPrices({"H100": 3.5, "H100 NVL": 4.0}, "EUR")


def held(device="GPU-0", *, attempt=0, hours=1.0, name=H100, energy_j=3.6e6):
    return GpuUse(attempt, device, name, hours * 3600, energy_j)


def test_gpus_and_launches_add_up():
    use = total_use([held(), held("GPU-1", hours=2), held(attempt=1, hours=0.5)], PRICES)
    assert use == ResourceUse(3.5, 3.0, 12.25, "EUR")


def test_a_gpu_that_ranks_share_counts_once():
    use = total_use([held(hours=1, energy_j=1.8e6), held(hours=2, energy_j=3.6e6)], PRICES)
    assert (use.gpu_hours, use.energy_kwh) == (2.0, 1.0)


def test_one_gpu_without_a_price_leaves_the_cost_unknown():
    use = total_use([held(), held("GPU-1", name="NVIDIA L4")], PRICES)
    assert (use.gpu_hours, use.cost, use.currency) == (2.0, None, None)


def test_a_run_without_gpus_uses_none():
    assert total_use([], PRICES) == ResourceUse(None, None, None, None)


@pytest.mark.parametrize(("gpu", "price"), [("nvidia h100 nvl", 4.0), (H100, 3.5), ("A100", None)])
def test_the_longest_name_has_the_price(gpu, price):
    assert PRICES.of(gpu) == price


def test_a_stored_run_counts_the_time_of_its_ranks(database):
    devices = [
        Device(id="GPU-0", kind="cuda", name=H100),
        Device(id="host", kind="host", name="host"),
    ]
    columns = {"step": [1, 2], "time_s": [1.0, 2.0], "energy_j": [10.0, 7.2e6]}
    with database.write() as session:
        start_run(session, RunStart(run_id="r", devices=devices), 100.0)
        add_batch(session, "r", Batch(seq=0, chunks=[Chunk(stream="GPU-0", columns=columns)]), 200)
        assert resource_use(session, "r", PRICES).gpu_hours == pytest.approx(100 / 3600)
        finish_run(session, "r", Finish(status="completed", finished_at=7300.0), 7300.0)
    with database.read() as session:
        assert resource_use(session, "r", PRICES) == ResourceUse(2.0, 2.0, 7.0, "EUR")


def replayed(session, *, seq, times):
    columns = {"step": list(range(len(times))), "time_s": times}
    batch = Batch(seq=seq, chunks=[Chunk(stream="GPU-0", columns=columns)])
    add_batch(session, "r", batch, 9e6, live=False)


def test_a_replayed_run_counts_by_its_own_clock(database):
    devices = [Device(id="GPU-0", kind="cuda", name=H100)]
    with database.write() as session:
        start = RunStart(run_id="r", started_at=1_000.0, devices=devices)
        run, _ = start_run(session, start, 9e6, live=False)
        assert (run.status, run.finished_at) == ("lost_contact", 1_000.0)
        replayed(session, seq=1, times=[3_000.0, 4_600.0])
        replayed(session, seq=0, times=[1_100.0, 2_000.0])
        session.refresh(run)
        assert (run.status, run.finished_at) == ("lost_contact", 4_600.0)
        assert resource_use(session, "r", PRICES).gpu_hours == pytest.approx(1.0)
        finish = Finish(status="completed", finished_at=8_200.0)
        finish_run(session, "r", finish, 9e6, live=False)
        replayed(session, seq=2, times=[8_000.0])
        session.refresh(run)
        assert (run.status, run.finished_at) == ("completed", 8_200.0)
        assert resource_use(session, "r", PRICES).gpu_hours == pytest.approx(2.0)


def test_a_replayed_rank_without_a_start_ends_with_its_newest_sample(database):
    with database.write() as session:
        run, _ = start_run(session, RunStart(run_id="r"), 9e6, live=False)
        replayed(session, seq=0, times=[1_100.0])
        session.refresh(run)
        assert (run.status, run.finished_at) == ("lost_contact", 1_100.0)


def test_a_start_after_the_first_contact_is_a_wrong_clock(database):
    devices = [Device(id="GPU-0", kind="cuda", name=H100)]
    with database.write() as session:
        start_run(session, RunStart(run_id="r", started_at=500.0, devices=devices), 100.0)
        finish_run(session, "r", Finish(status="completed"), 3_700.0)
        assert resource_use(session, "r", PRICES).gpu_hours == pytest.approx(1.0)
