"""The CUDA probe over an allocator that only counts, through torch's Python functions."""

from __future__ import annotations

import pytest
import torch

from memagent.delivery.buffer import DroppedSamples
from memagent.preflight.runner import PeakMonitor
from memagent.probe.cuda import CudaProbe
from memagent.probe.discover import discover
from memagent.probe.nvml_device import NvmlReading
from memagent.sampling.sampler import Sampler
from memagent.wire.messages import Event

MIB = 2**20


@pytest.fixture
def probe(cuda_allocator):
    probe = CudaProbe(torch, 0)
    yield probe
    probe.close()


def rows(sampler: Sampler) -> list[dict]:
    buffer = sampler.tracks[0].buffer
    return [
        dict(zip(buffer.columns, row, strict=True)) | (extra or {}) for row, extra in buffer.drain()
    ]


def test_a_sample_has_the_allocator_s_counters(cuda_allocator, probe):
    cuda_allocator.allocate(3 * MIB)
    cuda_allocator.allocate(512)
    cuda_allocator.free(3 * MIB)
    peak, readings = probe.readings(probe.sample())
    results = dict(zip(probe.columns, readings, strict=True))
    assert peak == 3 * MIB + 512
    assert (results["allocated_bytes"], results["requested_bytes"], results["active_bytes"]) == (
        512,
        505,
        512,
    )
    assert results["reserved_bytes"] == results["peak_reserved_bytes"] == 3 * MIB + 512
    assert (
        results["segments"] == 2
        and results["alloc_retries_total"] == 0
        and results["limit_bytes"] == 2**30
    )
    assert results["device_used_bytes"] is None  # no NVML here


def test_the_peak_of_each_phase_is_exact_even_if_it_is_not_the_highest(cuda_allocator, probe):
    sampler = Sampler([probe], DroppedSamples())
    for phase, size in (("forward", 30), ("backward", 50), ("optimizer", 10)):
        sampler.set_phase(phase)
        cuda_allocator.allocate(size * MIB)
        cuda_allocator.free(size * MIB)
    sampler.end_step()
    (row,) = rows(sampler)
    assert [
        row[f"phase_{phase}_peak_bytes"] for phase in ("data", "forward", "backward", "optimizer")
    ] == [0, 30 * MIB, 50 * MIB, 10 * MIB]
    assert row["peak_allocated_bytes"] == row["activations_bytes"] == 50 * MIB


def test_the_peak_since_a_mark_is_exact_and_stays_for_the_next_mark(cuda_allocator, probe):
    cuda_allocator.allocate(90 * MIB)
    cuda_allocator.free(90 * MIB)
    probe.mark()
    cuda_allocator.allocate(10 * MIB)
    cuda_allocator.allocate(30 * MIB)
    cuda_allocator.free(30 * MIB)
    assert probe.peak_since_mark() == 40 * MIB
    torch.cuda.reset_peak_memory_stats(0)  # by the script
    assert probe.peak_since_mark() == probe.peak_since_mark() == probe.mark() == 40 * MIB


def test_a_trial_is_measured_by_the_devices_own_counter(cuda_allocator, probe):
    """Read a peak that is over before any thread of memagent could have read it."""
    sampler = Sampler([probe], DroppedSamples())
    cuda_allocator.allocate(10 * MIB)
    sampler.set_user_phase("preflight")
    with PeakMonitor([probe]) as watch:
        cuda_allocator.free(cuda_allocator.allocate(30 * MIB))
    sampler.set_user_phase(None)
    sampler.end_step()
    assert watch.more_bytes() == {probe.device.id: 30 * MIB}
    (row,) = rows(sampler)
    assert (
        row["phase_preflight_peak_bytes"] == 40 * MIB and row["phase_data_peak_bytes"] == 10 * MIB
    )


def test_skipped_steps_keep_their_exact_peak(cuda_allocator, probe):
    sampler = Sampler([probe], DroppedSamples(), every=4, phases=False)
    for step in range(8):
        size = (90 if step == 1 else step + 1) * MIB
        cuda_allocator.allocate(size)
        cuda_allocator.free(size)
        sampler.end_step()
    result = rows(sampler)
    assert [(row["step"], row["peak_allocated_bytes"]) for row in result] == [
        (4, 90 * MIB),
        (8, 8 * MIB),
    ]
    assert all(row["phase_data_peak_bytes"] is None for row in result)


def test_during_graph_capture_the_allocator_is_left_alone(cuda_allocator, probe):
    sampler = Sampler([probe], DroppedSamples())
    cuda_allocator.allocate(MIB)
    sampler.end_step()
    before = (cuda_allocator.reads, cuda_allocator.resets)
    cuda_allocator.capturing = True
    sampler.set_phase("forward")
    cuda_allocator.allocate(7 * MIB)
    cuda_allocator.free(7 * MIB)
    sampler.set_phase("backward")
    sampler.end_step()
    assert (cuda_allocator.reads, cuda_allocator.resets) == before
    cuda_allocator.capturing = False
    sampler.end_step()
    captured, after = rows(sampler)[1:]
    assert captured["allocated_bytes"] == MIB
    assert after["peak_allocated_bytes"] == 8 * MIB


def test_a_lower_limit_of_the_process_is_the_limit_whenever_it_was_set(
    cuda_allocator, probe, monkeypatch
):
    monkeypatch.setattr(
        torch.cuda, "get_per_process_memory_fraction", lambda index: 0.25, raising=False
    )
    probe.refresh()
    limit = dict(zip(probe.columns, probe.readings(probe.sample())[1], strict=True))["limit_bytes"]
    later = CudaProbe(torch, 0)
    later.close()
    for device in (probe.device, later.device):
        assert (device.limit_bytes, device.limit_source) == (2**28, "per-process fraction")
    assert limit == probe.limit_bytes == 2**28


class Board:
    """The GPU's readings, as NVML would return them."""

    def reading(self) -> NvmlReading:
        return NvmlReading(
            used_bytes=700 * MIB,
            process_bytes=510 * MIB,
            other_processes_bytes=190 * MIB,
            power_w=250.0,
            energy_j=125.0,
        )

    def take_events(self) -> list[Event]:
        return [Event(kind="xid", data={"code": 79})]

    def close(self) -> None:
        self.is_closed = True


def test_a_sample_has_nvml_readings_and_the_context_is_process_memory_beyond_the_cache(
    cuda_allocator, monkeypatch
):
    board = Board()
    monkeypatch.setattr("memagent.probe.cuda.DeviceNvml", lambda uuid: board)
    probe = CudaProbe(torch, 0)
    cuda_allocator.allocate(10 * MIB)
    probe.mark()
    assert probe.context_bytes is None
    probe.refresh()
    results = dict(zip(probe.columns, probe.readings(probe.sample())[1], strict=True))
    assert (results["device_used_bytes"], results["process_device_bytes"]) == (700 * MIB, 510 * MIB)
    assert (results["other_processes_bytes"], results["power_w"], results["utilization_ratio"]) == (
        190 * MIB,
        250.0,
        None,
    )
    assert results["energy_j"] == 125.0
    assert probe.context_bytes == 500 * MIB
    assert [event.kind for event in probe.take_events()] == ["xid"]
    probe.close()
    assert board.is_closed


def test_a_model_with_offloaded_parameters_is_read_on_its_gpu(cuda_allocator, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    model = torch.nn.Linear(2, 2)
    assert [probe.device.kind for probe in discover([model], [])] == ["host"]
    cuda_allocator.allocate(MIB)
    probes = discover([model], [])
    assert [probe.device.kind for probe in probes] == ["cuda", "host"]
    for probe in probes:
        probe.close()
