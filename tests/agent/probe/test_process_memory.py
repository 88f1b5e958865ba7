"""Memory of this process, from the real /proc."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from memagent.probe.process_memory import PsutilMemory, open_process_memory

MIB = 2**20
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture
def memory():
    memory = open_process_memory()
    yield memory
    memory.close()


def run(code: str) -> list[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()


def test_it_agrees_with_psutil(memory):
    usage, info = memory.usage(memory.read()), psutil.Process().memory_info()
    assert usage.resident_bytes == pytest.approx(info.rss, abs=4 * MIB)
    assert usage.mapped_bytes == pytest.approx(info.vms, abs=4 * MIB)
    if sys.platform.startswith("linux"):
        assert usage.data_bytes == pytest.approx(info.data, abs=4 * MIB)
        assert (
            memory.peak_resident_bytes(memory.read_high_water()) >= usage.resident_bytes - 4 * MIB
        )


@linux
def test_the_same_reader_returns_a_forked_child_its_memory():
    code = f"""
import os
from memagent.probe.process_memory import open_process_memory
memory = open_process_memory()
read = memory.read
before = memory.usage(read()).resident_bytes
if not os.fork():
    block = bytearray(b"x") * {100 * MIB}
    print(memory.usage(read()).resident_bytes - before, flush=True)
    os._exit(0)
os.wait()
print(memory.usage(read()).resident_bytes - before)
"""
    child, parent = map(int, run(code))
    assert child > 90 * MIB
    assert abs(parent) < 10 * MIB


@linux
@pytest.mark.parametrize("in_its_place", ["", "open('/etc/passwd')"])
def test_a_script_that_closes_all_files_loses_no_file_of_its_own_and_readings_only_until_repair(
    in_its_place,
):
    code = f"""
import os
from memagent.probe.process_memory import open_process_memory
memory = open_process_memory()
before = memory.usage(memory.read())
os.closerange(3, 64)
kept = [{in_its_place}]
try:
    print(memory.usage(memory.read()) == before)
except OSError:
    print("refused")
memory.repair()
block = bytearray(b"x") * {100 * MIB}
print(memory.usage(memory.read()).resident_bytes - before.resident_bytes > {90 * MIB})
os.closerange(len(kept) + 3, 64)
memory.close()
print(all(file.readable() and os.fstat(file.fileno()) for file in kept))
"""
    assert run(code) == ["True" if in_its_place else "refused", "True", "True"]


@linux
def test_it_closes_only_its_own_file_and_that_once():
    code = """
import os
from memagent.probe.process_memory import open_process_memory
memory = open_process_memory()
os.closerange(3, 64)
with open("/dev/null") as file:
    memory.close()
    memory.close()
    os.fstat(file.fileno())
    print("kept")
"""
    assert run(code) == ["kept"]


def test_psutil_returns_the_same_without_proc(memory):
    portable = PsutilMemory()
    expected = memory.usage(memory.read()).resident_bytes
    assert portable.usage(portable.read()).resident_bytes == pytest.approx(expected, abs=4 * MIB)
    assert portable.peak_resident_bytes(portable.read_high_water()) == 0
    portable.close()
