"""NVML through the real bindings (nvidia-ml-py) and a library that `cc` builds from fake_nvml.c.

The fake replaces the driver's library. It exports the same C functions with the same structures,
and a text file has their results. Only a GPU can show whether a real driver returns the same.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pynvml
import pytest

from memagent.probe import nvml
from memagent.probe.nvml import DeviceNvml
from memagent.probe.nvml_device import NvmlReading

GPU = "GPU-6c4b1d2a-0000-4000-8000-000000000001"
SLICE = "MIG-6c4b1d2a-0000-4000-8000-000000000002"
GIB = 2**30
ME = os.getpid()
USUAL = {
    "gpu": GPU,
    "slice": SLICE,
    "total": 80 * GIB,
    "free": 50 * GIB,
    "used": 29 * GIB,
    "reserved": GIB,
    "gpu_utilization": 87,
    "power_mw": 312_500,
    "energy_mj": 9_000_000,
    "temperature": 64,
    "ecc_errors": 0,
    "events_supported": 8,
    f"compute {ME}": 20 * GIB,
    "compute 1000001": 6 * GIB,
    "graphics 1000002": 3 * GIB,
}


def compile_fake(folder: Path, *defines: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        reason = "no C compiler to make the fake NVML library with: install gcc and libc6-dev"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    library = folder / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("fake_nvml.c")
    warnings = ["-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        [
            compiler,
            *warnings,
            "-shared",
            "-fPIC",
            "-Wl,-soname,libnvidia-ml.so.1",
            *defines,
            "-o",
            library,
            source,
        ],
        check=True,
    )
    return library


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    return compile_fake(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def old_library(tmp_path_factory) -> Path:
    return compile_fake(tmp_path_factory.mktemp("old_nvml"), "-DOLD_DRIVER")


class Machine:
    """The state that the fake library reports."""

    def __init__(self, folder: Path, monkeypatch) -> None:
        self._state = folder / "state"
        self._calls = folder / "calls"
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("MEMAGENT_FAKE_NVML", str(self._state))
        self.set()

    def load(self, library: Path) -> None:
        """Make pynvml use `library`, as if the dynamic linker had found it."""
        self._monkeypatch.setattr(pynvml, "nvmlLib", pynvml.CDLL(str(library)))
        self._monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

    def set(self, *lines: str, without: str | None = None, **changes: object) -> None:
        """Set the default state with `changes` and more `lines`.

        Leaves out the keys that start with `without`.
        """
        state = {
            key: value
            for key, value in USUAL.items()
            if without is None or not key.startswith(without)
        }
        text = "".join(
            f"{key} {value}\n" for key, value in {**state, **changes, "calls": self._calls}.items()
        )
        self._state.write_text(text + "".join(f"{line}\n" for line in lines))

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().split() if self._calls.exists() else []


@pytest.fixture
def machine(library, tmp_path, monkeypatch):
    nvml._library.reset()  # another test may have looked for the system's
    machine = Machine(tmp_path, monkeypatch)
    machine.load(library)
    yield machine
    nvml._library.reset()


@pytest.fixture
def gpu(machine):
    device = DeviceNvml(GPU)
    yield device
    device.close()


def test_all_readings_of_a_gpu(gpu, capfd):
    assert gpu.reading() == NvmlReading(
        used_bytes=29 * GIB,
        free_bytes=50 * GIB,
        reserved_bytes=GIB,
        total_bytes=80 * GIB,
        process_bytes=20 * GIB,
        other_processes_bytes=9 * GIB,
        utilization_ratio=0.87,
        power_w=312.5,
        energy_j=0.0,
        temperature_c=64.0,
    )
    assert gpu.take_events() == []
    assert capfd.readouterr().err == ""


def test_each_reading_calls_nvml_again(gpu, machine):
    gpu.reading()
    machine.set(used=70 * GIB)
    assert gpu.reading().used_bytes == 70 * GIB


def test_energy_counts_from_the_first_reading_also_after_the_driver_was_loaded_again(gpu, machine):
    gpu.reading()
    machine.set(energy_mj=9_750_000)
    assert gpu.reading().energy_j == 750.0
    machine.set(energy_mj=1_000)
    assert gpu.reading().energy_j == 0.0
    machine.set(energy_mj=3_000)
    assert gpu.reading().energy_j == 2.0


@pytest.mark.parametrize("uuid", [GPU, GPU.removeprefix("GPU-"), GPU.replace("GPU-", "MIG-")])
def test_a_gpu_is_found_by_its_uuid_with_any_prefix(machine, uuid):
    device = DeviceNvml(uuid)
    assert device.reading().total_bytes == 80 * GIB
    device.close()


@pytest.mark.parametrize("uuid", [SLICE, SLICE.removeprefix("MIG-"), SLICE.replace("MIG-", "GPU-")])
def test_a_slice_has_its_own_memory_and_the_power_and_temperature_of_its_board(
    machine, uuid, capfd
):
    machine.set("xid 63")
    device = DeviceNvml(uuid)
    reading = device.reading()
    assert (reading.used_bytes, reading.process_bytes) == (29 * GIB, 20 * GIB)
    assert (reading.power_w, reading.temperature_c) == (312.5, 64.0)
    assert reading.utilization_ratio is None
    assert [event.data["code"] for event in device.take_events()] == [63]
    assert capfd.readouterr().err.count("utilization (Not Supported)") == 1
    device.close()


SINGLE = {
    "nvmlDeviceGetUtilizationRates": ("utilization_ratio", "utilization"),
    "nvmlDeviceGetPowerUsage": ("power_w", "power"),
    "nvmlDeviceGetTotalEnergyConsumption": ("energy_j", "energy"),
    "nvmlDeviceGetTemperature": ("temperature_c", "temperature"),
    "nvmlDeviceGetComputeRunningProcesses_v3": ("process_bytes", "memory by process"),
}


@pytest.mark.parametrize("function", SINGLE)
@pytest.mark.parametrize(
    ("code", "reason"),
    [(3, "Not Supported"), (4, "Insufficient Permissions"), (999, "Unknown Error")],
)
def test_a_reading_that_fails_leaves_the_others_alone_and_is_named_once(
    gpu, machine, capfd, function, code, reason
):
    missing, name = SINGLE[function]
    full = gpu.reading()
    machine.set(f"return {function} {code}")
    for _ in range(3):
        reading = gpu.reading()
    remaining = {field: value for field, value in vars(reading).items() if value is not None}
    expected = {field: value for field, value in vars(full).items() if field != missing}
    if missing == "process_bytes":
        del expected["other_processes_bytes"]
    assert remaining == expected
    assert (
        capfd.readouterr().err
        == f"memagent: NVML does not provide all readings of {GPU}, missing: {name} ({reason})\n"
    )


def test_missing_readings_are_reported_in_one_line(gpu, machine, capfd):
    machine.set(
        "return nvmlDeviceGetPowerUsage 3",
        "return nvmlDeviceGetTotalEccErrors 3",
        "return nvmlDeviceGetMemoryInfo_v2 4",
        "return nvmlDeviceGetMemoryInfo 4",
        events_supported=0,
    )
    assert gpu.reading().used_bytes is None
    assert gpu.reading().process_bytes == 20 * GIB
    assert capfd.readouterr().err == (
        f"memagent: NVML does not provide all readings of {GPU}, missing: "
        "memory (Insufficient Permissions); "
        "power, XIDs, ECC errors (Not Supported)\n"
    )


def test_an_unsupported_reading_is_not_called_again(gpu, machine):
    machine.set("return nvmlDeviceGetPowerUsage 3")
    for _ in range(4):
        gpu.reading()
    assert machine.calls.count("nvmlDeviceGetPowerUsage") == 1


def test_a_reading_comes_back_after_a_passing_error(gpu, machine):
    machine.set("return nvmlDeviceGetPowerUsage 999")
    assert gpu.reading().power_w is None
    machine.set()
    assert gpu.reading().power_w == 312.5


def test_a_process_of_another_pid_namespace_is_not_mistaken_for_one_without_memory(
    gpu, machine, capfd
):
    machine.set(without=f"compute {ME}")
    for _ in range(2):
        reading = gpu.reading()
    assert (reading.process_bytes, reading.other_processes_bytes) == (None, None)
    assert reading.used_bytes == 29 * GIB
    assert capfd.readouterr().err.count("another PID namespace") == 1


def test_memory_by_process_may_be_unavailable(gpu, machine, capfd):
    machine.set(f"compute {ME} -1", without=f"compute {ME}")
    assert gpu.reading().process_bytes is None
    assert "memory by process (the driver does not report it)" in capfd.readouterr().err


def test_other_processes_are_unknown_if_one_of_them_is(gpu, machine):
    machine.set("compute 1000003 -1")
    reading = gpu.reading()
    assert (reading.process_bytes, reading.other_processes_bytes) == (20 * GIB, None)


def test_a_process_with_compute_and_graphics_counts_once(gpu, machine):
    machine.set(f"graphics {ME} {20 * GIB}", f"graphics 1000001 {6 * GIB}")
    reading = gpu.reading()
    assert (reading.process_bytes, reading.other_processes_bytes) == (20 * GIB, 9 * GIB)


def test_a_gpu_without_graphics_still_lists_its_processes(gpu, machine):
    machine.set("return nvmlDeviceGetGraphicsRunningProcesses_v3 3")
    assert gpu.reading().process_bytes == 20 * GIB


def test_a_driver_without_the_newer_functions(machine, old_library, capfd):
    machine.load(old_library)
    device = DeviceNvml(GPU)
    reading = device.reading()
    assert (reading.used_bytes, reading.reserved_bytes) == (
        30 * GIB,
        None,
    )  # it counts the driver's memory as used
    assert (reading.process_bytes, reading.other_processes_bytes) == (20 * GIB, 9 * GIB)
    assert capfd.readouterr().err == ""
    device.close()


def test_xids_become_events_once_each(gpu, machine):
    gpu.reading()
    assert gpu.take_events() == []
    machine.set("xid 79", "xid 48")
    gpu.reading()
    events = gpu.take_events()
    assert [(event.kind, event.data) for event in events] == [
        ("xid", {"device": GPU, "code": 79}),
        ("xid", {"device": GPU, "code": 48}),
    ]
    assert all(event.time_s > 1.7e9 for event in events)
    gpu.reading()
    assert gpu.take_events() == []


def test_a_flood_of_xids_does_not_hold_up_a_reading(gpu, machine):
    machine.set(*["xid 13"] * 100)
    gpu.reading()
    first = len(gpu.take_events())
    assert 0 < first < 100
    for _ in range(4):
        gpu.reading()
    assert first + len(gpu.take_events()) == 100


def test_new_ecc_errors_become_an_event_and_old_ones_do_not(gpu, machine):
    machine.set(ecc_errors=5)
    gpu.reading()
    assert gpu.take_events() == []
    machine.set(ecc_errors=7)
    gpu.reading()
    (event,) = gpu.take_events()
    assert (event.kind, event.data) == ("ecc", {"device": GPU, "uncorrected_errors": 2})


def test_the_first_reading_opens_nvml_and_one_init_serves_all(machine):
    devices = [DeviceNvml(GPU), DeviceNvml(SLICE)]
    assert machine.calls == []
    for device in devices:
        device.reading()
        device.reading()
    assert machine.calls.count("nvmlInitWithFlags") == 1
    devices[0].close()
    assert "nvmlShutdown" not in machine.calls
    devices[1].close()
    devices[1].close()
    assert machine.calls.count("nvmlShutdown") == 1
    assert machine.calls.count("nvmlEventSetFree") == 2


def test_a_closed_device_stays_closed_and_returns_its_last_reading(gpu, machine):
    reading = gpu.reading()
    gpu.close()
    before = machine.calls
    assert gpu.reading() == reading
    assert machine.calls == before


def test_nvml_can_be_initialized_again_after_a_shutdown(machine):
    for _ in range(2):
        device = DeviceNvml(GPU)
        assert device.reading().used_bytes == 29 * GIB
        device.close()
    assert machine.calls.count("nvmlInitWithFlags") == 2


@pytest.mark.parametrize(
    ("code", "reason"),
    [(9, "Driver Not Loaded"), (18, "RM has detected an NVML/RM version mismatch.")],
)
def test_without_a_driver_it_says_so_once_and_goes_on(gpu, machine, capfd, code, reason):
    machine.set(f"return nvmlInitWithFlags {code}")
    assert gpu.reading() == gpu.reading() == DeviceNvml(SLICE).reading() == NvmlReading()
    assert gpu.take_events() == []
    assert capfd.readouterr().err == f"memagent: no NVML readings: {reason}\n"
    assert machine.calls.count("nvmlInitWithFlags") == 1


def test_a_missing_or_inaccessible_gpu_is_reported_once(machine, capfd):
    device = DeviceNvml("GPU-0")
    assert device.reading() == device.reading() == NvmlReading()
    assert capfd.readouterr().err == "memagent: no NVML readings of GPU-0: Not Found\n"
    assert machine.calls.count("nvmlShutdown") == 1
    machine.set("return nvmlDeviceGetHandleByUUID 4")
    DeviceNvml(GPU).reading()
    assert (
        capfd.readouterr().err == f"memagent: no NVML readings of {GPU}: Insufficient Permissions\n"
    )


def test_the_wrong_pynvml_is_recognized(machine, monkeypatch, tmp_path, capfd):
    (tmp_path / "pynvml.py").write_text("def smi(): pass\n")
    monkeypatch.delitem(sys.modules, "pynvml")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert DeviceNvml(GPU).reading() == NvmlReading()
    assert "the installed pynvml is another package" in capfd.readouterr().err


def test_a_reading_in_another_thread_is_not_waited_for(gpu, machine, monkeypatch):
    first = gpu.reading()
    entered, leave = threading.Event(), threading.Event()
    real = pynvml.nvmlDeviceGetPowerUsage

    def hang(handle):
        entered.set()
        leave.wait(30)
        return real(handle)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", hang)
    machine.set(used=GIB)
    stuck = threading.Thread(target=gpu.reading)
    stuck.start()
    assert entered.wait(30)
    assert gpu.reading() == first
    gpu.close()  # returns although the other thread hangs in the driver
    leave.set()
    stuck.join(30)
    assert gpu.reading().used_bytes == GIB


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )


READ = (
    f"from memagent.probe.nvml import DeviceNvml; print(DeviceNvml({GPU!r}).reading().used_bytes)"
)


def test_the_dynamic_linker_finds_the_library(machine, library):
    assert run_python(READ, LD_LIBRARY_PATH=str(library.parent)).stdout == f"{29 * GIB}\n"


def test_a_machine_without_the_library(tmp_path):
    (tmp_path / "libnvidia-ml.so.1").write_text("no library at all")
    done = run_python(READ, LD_LIBRARY_PATH=str(tmp_path))
    assert done.stdout == "None\n"
    assert done.stderr == (
        "memagent: no NVML readings: NVML Shared Library Not Found "
        "(a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility)\n"
    )


def test_a_forked_child_begins_nvml_for_itself(machine, library):
    code = f"""
import os
from memagent.probe import nvml
from memagent.probe.nvml import DeviceNvml
parent = DeviceNvml({GPU!r})
parent.reading()
if not os.fork():
    print(DeviceNvml({GPU!r}).reading().used_bytes, flush=True)
    os._exit(0)
os.wait()
parent.close()
"""
    assert run_python(code, LD_LIBRARY_PATH=str(library.parent)).stdout == f"{29 * GIB}\n"
    assert machine.calls.count("nvmlInitWithFlags") == 2
    assert machine.calls.count("nvmlShutdown") == 1
