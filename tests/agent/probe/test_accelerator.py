"""Intel and Apple GPUs, with stand-ins for `torch.xpu` and `torch.mps`.

The stand-ins return what torch documents for these modules and nothing else. So the tests cover
memagent's code, but not the shapes and numbers of a real device. Any call that would initialize or
synchronize a device fails the test.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from memagent.probe.accelerator import MpsProbe, XpuProbe
from memagent.probe.discover import discover
from memagent.probe.host import HostProbe

GIB = 2**30
UUID = "8680563f-0000-0000-0000-000000000000"


class Allocator:
    """Return the counters of one device in the form of `memory_stats_as_nested_dict`."""

    def __init__(self) -> None:
        self.current = self.peak = self.reserved = 0

    def allocate(self, size: int) -> None:
        self.current += size
        self.peak = max(self.peak, self.current)
        self.reserved = max(self.reserved, self.current)

    def stats(self, device: int) -> dict[str, Any]:
        allocated = {"current": self.current, "peak": self.peak, "allocated": 0, "freed": 0}
        reserved = {"current": self.reserved, "peak": self.reserved, "allocated": 0, "freed": 0}
        return {
            "allocated_bytes": {"all": allocated},
            "reserved_bytes": {"all": reserved},
            "active_bytes": {"all": allocated},
            "requested_bytes": {"all": allocated},
        }


def not_to_be_called(*_: object) -> None:
    raise AssertionError("the agent must not initialise or synchronise a device")


def torch_with_xpu(allocator: Allocator, *, fraction: float = 1.0, memory_info: Any = None) -> Any:
    properties = SimpleNamespace(
        name="Intel(R) Data Center GPU Max 1550", total_memory=64 * GIB, uuid=UUID
    )
    return SimpleNamespace(
        _C=SimpleNamespace(_xpu_memoryStats=allocator.stats),
        xpu=SimpleNamespace(
            is_initialized=lambda: True,
            get_device_properties=lambda index: properties,
            get_per_process_memory_fraction=lambda index: fraction,
            mem_get_info=memory_info or (lambda index: (60 * GIB, 64 * GIB)),
            init=not_to_be_called,
            synchronize=not_to_be_called,
            reset_peak_memory_stats=not_to_be_called,
        ),
    )


def torch_with_mps(allocator: Allocator, *, device_stats: Any = None) -> Any:
    core = (
        SimpleNamespace(_accelerator_getDeviceStats=device_stats)
        if device_stats
        else SimpleNamespace()
    )
    return SimpleNamespace(
        _C=core,
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: True)),
        mps=SimpleNamespace(
            current_allocated_memory=lambda: allocator.current,
            driver_allocated_memory=lambda: allocator.reserved + 10,
            recommended_max_memory=lambda: GIB,
            synchronize=not_to_be_called,
        ),
    )


@pytest.fixture
def allocator() -> Allocator:
    return Allocator()


def sample(probe: Any) -> dict[str, Any]:
    return dict(zip(probe.columns, probe.readings(probe.sample())[1], strict=True))


def test_an_xpu_is_read_like_a_cuda_device(allocator):
    probe = XpuProbe(torch_with_xpu(allocator), 0)
    allocator.allocate(3 * GIB)
    allocator.allocate(-GIB)
    assert probe.used_bytes() == 2 * GIB
    probe.refresh()
    assert sample(probe) == {
        "allocated_bytes": 2 * GIB,
        "reserved_bytes": 3 * GIB,
        "peak_reserved_bytes": 3 * GIB,
        "active_bytes": 2 * GIB,
        "requested_bytes": 2 * GIB,
        "device_used_bytes": 4 * GIB,
        "limit_bytes": 64 * GIB,
    }
    device = probe.device
    assert (device.id, device.kind, device.limit_source) == (f"xpu:{UUID}", "xpu", "device memory")


def test_an_xpu_peak_between_readings_is_exact_when_it_is_the_highest_so_far(allocator):
    probe = XpuProbe(torch_with_xpu(allocator), 0)
    allocator.allocate(5 * GIB)
    allocator.allocate(-4 * GIB)
    assert probe.peak(probe.mark()) == 5 * GIB
    allocator.allocate(2 * GIB)
    assert probe.peak(probe.mark()) == 3 * GIB  # a later, lower peak isn't the old one
    allocator.allocate(-GIB)
    assert probe.readings(probe.sample())[0] == 3 * GIB  # allocated when the phase began


def test_an_xpu_limit_is_the_fraction_or_the_argument(allocator):
    half = XpuProbe(torch_with_xpu(allocator, fraction=0.5), 0)
    assert (half.device.limit_bytes, half.device.limit_source) == (32 * GIB, "per-process fraction")
    probe = XpuProbe(torch_with_xpu(allocator), 0, GIB)
    assert (probe.device.limit_bytes, probe.device.limit_source) == (GIB, "given")


def test_an_xpu_without_free_memory_is_reported_once(allocator, capfd):
    def unsupported(index: int) -> tuple[int, int]:
        raise RuntimeError(
            "The device does not support querying the available free memory.\nMore of a C++ trace"
        )

    probe = XpuProbe(torch_with_xpu(allocator, memory_info=unsupported), 0)
    for _ in range(3):
        probe.refresh()
    assert sample(probe)["device_used_bytes"] is None
    assert capfd.readouterr().err == (
        "memagent: memory used by other processes on Intel(R) Data Center GPU Max 1550 is unknown: "
        "The device does not support querying the available free memory.\n"
    )


def test_an_older_torch_for_xpu_lacks_some_of_it(allocator):
    older = torch_with_xpu(allocator)
    del older.xpu.mem_get_info, older.xpu.get_per_process_memory_fraction
    older._C._xpu_memoryStats = lambda index: {
        name: value for name, value in allocator.stats(index).items() if name != "requested_bytes"
    }
    probe = XpuProbe(older, 1)
    probe.refresh()
    assert (sample(probe)["requested_bytes"], sample(probe)["device_used_bytes"]) == (None, None)


def test_mps_gives_allocated_driver_and_limit(allocator):
    probe = MpsProbe(torch_with_mps(allocator), environ={})
    allocator.allocate(100)
    assert probe.used_bytes() == 100
    assert sample(probe) == {
        "allocated_bytes": 100,
        "reserved_bytes": 110,
        "limit_bytes": int(1.7 * GIB),
    }
    assert (probe.device.id, probe.device.kind, probe.device.limit_source) == (
        "mps:0",
        "mps",
        "MPS high watermark",
    )


@pytest.mark.parametrize(
    ("ratio", "limit"),
    [("0.5", GIB // 2), ("0.0", None), ("1e6", None), ("nonsense", int(1.7 * GIB))],
)
def test_the_mps_limit_follows_the_watermark_and_never_exceeds_the_machine(allocator, ratio, limit):
    probe = MpsProbe(torch_with_mps(allocator), environ={"PYTORCH_MPS_HIGH_WATERMARK_RATIO": ratio})
    assert probe.device.limit_bytes == (limit or psutil.virtual_memory().total)


def test_mps_peaks_are_exact_if_torch_counts_them(allocator):
    counted = MpsProbe(torch_with_mps(allocator, device_stats=allocator.stats), environ={})
    plain = MpsProbe(torch_with_mps(allocator), environ={})

    def unsupported(index: int) -> dict[str, Any]:
        raise RuntimeError("Allocator for mps is not a DeviceAllocator.")

    older = MpsProbe(torch_with_mps(allocator, device_stats=unsupported), environ={})
    allocator.allocate(500)
    allocator.allocate(-400)
    assert [probe.peak(probe.mark()) for probe in (counted, plain, older)] == [500, 100, 100]
    assert counted.peak(counted.mark()) == 100
    allocator.allocate(700)
    assert [probe.readings(probe.sample())[0] for probe in (counted, plain, older)] == [
        800,
        800,
        800,
    ]


class Parameter(SimpleNamespace):
    """Return a torch with the attributes that `discover` reads."""


def model_on(*devices: str) -> Any:
    parameters = {str(i): Parameter(device=torch.device(d)) for i, d in enumerate(devices)}
    return SimpleNamespace(_parameters=parameters, _modules={})


def limit_sources(probes: list) -> list[tuple[str, str]]:
    for probe in probes:
        probe.close()
    return [(type(probe).__name__, probe.device.limit_source) for probe in probes]


def test_discover_takes_the_probe_of_the_device_that_holds_the_parameters(allocator):
    xpu = discover(
        [model_on("xpu:1", "xpu:1", "cpu")], [], 7 * GIB, torch=torch_with_xpu(allocator)
    )
    assert [probe.device.index for probe in xpu] == [1, 0]
    (name, source), (host, host_source) = limit_sources(xpu)
    assert (name, source, host) == ("XpuProbe", "given", "HostProbe")
    assert host_source != "given"
    assert (
        limit_sources(discover([model_on("mps:0")], [], torch=torch_with_mps(allocator)))[0][0]
        == "MpsProbe"
    )


def test_discover_finds_devices_that_only_an_optimizer_knows(allocator):
    optimizer = SimpleNamespace(
        param_groups=[{"params": [Parameter(device=torch.device("xpu:0"))]}]
    )
    assert (
        limit_sources(discover([], [optimizer], torch=torch_with_xpu(allocator)))[0][0]
        == "XpuProbe"
    )


@pytest.mark.parametrize("device", ["cuda:0", "xpu:0", "mps:0", "meta", "cpu"])
def test_discover_returns_the_host_alone_if_torch_does_not_use_the_device(device):
    """Check with the real torch that devices of fake tensors don't get initialized."""
    (host,) = probes = discover([model_on(device)], [], 3 * GIB, torch=real_torch_without_devices())
    assert isinstance(host, HostProbe)
    assert limit_sources(probes) == [("HostProbe", "given")]
    assert not torch.cuda.is_initialized()


def real_torch_without_devices() -> Any:
    if torch.backends.mps.is_available():
        pytest.skip("this machine has an Apple GPU")
    return torch
