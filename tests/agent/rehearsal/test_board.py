"""The device's books and addresses, called with ctypes in processes without torch."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memagent.rehearsal import build
from memagent.units import MIB

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(
        sys.platform != "linux" or shutil.which("cc") is None,
        reason="it takes Linux and a compiler",
    ),
]
PRELUDE = """
import ctypes, json, os, sys
device = ctypes.CDLL(os.environ["DEVICE"])
MIB = 1 << 20

def allocate(size):
    address = ctypes.c_void_p()
    status = device.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size))
    return address if status == 0 else None

def free_bytes():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert device.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value

def show(**values):
    print(json.dumps(values), flush=True)
"""


@pytest.fixture(scope="session")
def device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("device") / build.DEVICE
    build.compile_device(path)
    return path


@pytest.fixture
def start(device: Path, tmp_path: Path):
    """Start a script that has the device, 100 MiB of memory by default."""
    processes: list[subprocess.Popen[str]] = []

    def run(script: str, **settings: str | int) -> subprocess.Popen[str]:
        known = {"MEMORY": 100 * MIB, "CONTEXT": 10 * MIB, "LEDGER": tmp_path / "ledger"} | settings
        environment = {f"MEMAGENT_REHEARSAL_{key}": str(value) for key, value in known.items()}
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + script],
            env={**os.environ, **environment, "DEVICE": str(device)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def _line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def test_two_processes_share_the_capacity_until_one_dies(start) -> None:
    holder = start("block = allocate(60 * MIB); show(free=free_bytes()); input()")
    assert _line(holder) == {"free": 30 * MIB}
    second = start(
        "show(large=bool(allocate(30 * MIB)), small=bool(allocate(20 * MIB)), free=free_bytes())\n"
        "input(); show(free=free_bytes())"
    )
    assert _line(second) == {"large": False, "small": True, "free": 0}
    holder.kill()
    holder.wait()
    assert second.stdin is not None
    second.stdin.write("\n")
    second.stdin.flush()
    assert _line(second) == {"free": 70 * MIB}


def test_a_forked_child_has_books_of_its_own(start) -> None:
    parent = start(
        "allocate(20 * MIB)\n"
        "child = os.fork()\n"
        "if child == 0: allocate(30 * MIB); show(free=free_bytes()); os._exit(0)\n"
        "os.waitpid(child, 0); show(free=free_bytes())"
    )
    assert _line(parent) == {"free": 30 * MIB}  # two contexts, 50 MiB of blocks
    assert _line(parent) == {"free": 70 * MIB}


@pytest.mark.parametrize("order", ["growing", "falling"])
def test_addresses_take_the_first_gap_in_their_order(start, order: str) -> None:
    process = start(
        "blocks = [allocate(4 * MIB) for _ in range(5)]\n"
        "first = [block.value for block in blocks]\n"
        "device.cudaFree(blocks[1]); device.cudaFree(blocks[3])\n"
        "show(first=first, again=[allocate(size * MIB).value for size in (6, 4, 3)])",
        ADDRESSES=order,
    )
    seen = _line(process)
    step = 4 * MIB if order == "growing" else -4 * MIB
    first = seen["first"]
    assert [b - a for a, b in itertools.pairwise(first)] == [step] * 4
    beyond = first[4] + (4 * MIB if order == "growing" else -6 * MIB)
    assert seen["again"] == [beyond, first[1], first[3]]


def test_memory_reads_as_zeros_and_keeps_short_copies(start) -> None:
    process = start(
        "block = allocate(8 * MIB)\n"
        "data = ctypes.create_string_buffer(bytes(range(256)) * 4096 * 2)\n"
        "back = ctypes.create_string_buffer(1024)\n"
        "seen = []\n"
        "for size in (2 * MIB, 1024):\n"
        "    device.cudaMemcpy(block, data, ctypes.c_size_t(size), 1)\n"
        "    device.cudaMemcpy(back, block, ctypes.c_size_t(1024), 2)\n"
        "    seen.append(sum(back.raw))\n"
        "show(seen=seen)"
    )
    assert _line(process) == {"seen": [0, sum(range(256)) * 4]}


def test_there_is_no_device_unless_one_is_configured(start) -> None:
    process = start(
        "count = ctypes.c_int(5); status = device.cudaGetDeviceCount(ctypes.byref(count))\n"
        "show(status=status, count=count.value, block=bool(allocate(1)))",
        MEMORY=0,
    )
    assert _line(process) == {"status": 100, "count": 0, "block": False}


@pytest.mark.parametrize(
    ("visible", "buses"), [("2,0", [3, 1]), ("1,7,0", [2]), ("", []), ("-1", []), (None, [1, 2, 3])]
)
def test_visible_devices_name_physical_ones(start, monkeypatch, visible, buses) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    process = start(
        "count = ctypes.c_int(); device.cudaGetDeviceCount(ctypes.byref(count))\n"
        "text = ctypes.create_string_buffer(32)\n"
        "buses = []\n"
        "for ordinal in range(count.value):\n"
        "    device.cudaDeviceGetPCIBusId(text, 32, ordinal); buses.append(int(text.value[9:11]))\n"
        "show(buses=buses)",
        COUNT=3,
    )
    assert _line(process) == {"buses": buses}


@pytest.mark.parametrize("visible", ["2", "2,0", "", None])
def test_visible_devices_are_those_at_the_first_question(start, visible: str | None) -> None:
    setting = "" if visible is None else f'os.environ["CUDA_VISIBLE_DEVICES"] = {visible!r}'
    script = f"""
os.environ.pop("CUDA_VISIBLE_DEVICES", None)
{setting}
count, bus = ctypes.c_int(), ctypes.create_string_buffer(32)
device.cudaGetDeviceCount(ctypes.byref(count))
os.environ["CUDA_VISIBLE_DEVICES"] = "1"
device.cudaDeviceGetPCIBusId(bus, 32, 0)
show(count=count.value, bus=bus.value.decode())
"""
    first = {"2": "00000000:03:00.0", "2,0": "00000000:03:00.0", None: "00000000:01:00.0", "": ""}
    count = {"2": 1, "2,0": 2, None: 3, "": 0}
    assert _line(start(script, COUNT=3)) == {"count": count[visible], "bus": first[visible]}


NCCL = """
device.ncclGetLastError.restype = ctypes.c_char_p
before, handles = free_bytes(), (ctypes.c_void_p * 2)()
statuses = [device.ncclCommInitAll(handles, 1, None) for _ in range(3)]
show(
    statuses=statuses,
    taken=before - free_bytes(),
    opened=device.memagent_communicators(),
    error=device.ncclGetLastError(None).decode(),
)
"""


def test_communicators_take_memory_until_there_is_none(start) -> None:
    seen = _line(start(NCCL, COMMUNICATOR=40 * MIB))
    assert seen["statuses"] == [0, 0, 1]
    assert (seen["opened"], seen["taken"]) == (2, 80 * MIB)
    assert "out of memory" in seen["error"]
