"""The binding limit and memory pressure, from the real system and copies of /proc and /sys."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memagent.probe.host_limits import (
    Cgroup,
    MemoryLimit,
    MemoryUsage,
    Pressure,
    binding_limit,
    find_cgroup,
    free_host_bytes,
    limits,
    read_pressure,
)

GIB = 2**30
MIB = 2**20


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def cgroup_limit_bytes(root: Path) -> int | None:
    cgroup = find_cgroup(root=root)
    return cgroup.limit_bytes if cgroup else None


def test_cgroup_v2_takes_the_smallest_limit_up_the_tree(tmp_path: Path):
    write(tmp_path / "proc/self/cgroup", "0::/user/job\n")
    write(tmp_path / "sys/fs/cgroup/user/job/memory.max", "max\n")
    write(tmp_path / "sys/fs/cgroup/user/memory.max", f"{4 * GIB}\n")
    write(tmp_path / "sys/fs/cgroup/memory.max", f"{8 * GIB}\n")
    assert cgroup_limit_bytes(tmp_path) == 4 * GIB


def test_cgroup_v1_is_found_even_with_a_line_of_v2(tmp_path: Path):
    write(tmp_path / "proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/x\n0::/\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{2 * GIB}\n")
    write(tmp_path / "sys/fs/cgroup/memory.max", f"{GIB}\n")
    assert cgroup_limit_bytes(tmp_path) == 2 * GIB


def test_no_limit_is_none(tmp_path: Path):
    assert cgroup_limit_bytes(tmp_path) is None
    write(tmp_path / "proc/self/cgroup", "4:memory:/\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert cgroup_limit_bytes(tmp_path) is None


def test_a_cgroup_that_was_found_is_not_looked_for_again(tmp_path: Path):
    cgroup = Cgroup(2, tmp_path, tmp_path, 4 * GIB)
    write(tmp_path / "memory.current", f"{GIB}\n")
    nothing = tmp_path / "nothing"
    found = {limit.kind: limit for limit in limits(MemoryUsage(0, 0, 1), cgroup, root=nothing)}
    assert found["cgroup"] == MemoryLimit("cgroup", 4 * GIB, 1)
    assert read_pressure(cgroup, root=nothing).cgroup_used_bytes == GIB


def test_the_limit_with_the_least_headroom_binds(tmp_path: Path):
    write(tmp_path / "proc/self/cgroup", "0::/\n")
    write(tmp_path / "sys/fs/cgroup/memory.max", f"{GIB}\n")
    result = binding_limit(
        MemoryUsage(mapped_bytes=GIB, data_bytes=GIB // 2, resident_bytes=GIB // 4), root=tmp_path
    )
    assert (result.kind, result.limit_bytes, result.headroom_bytes) == ("cgroup", GIB, 3 * GIB // 4)


def test_physical_memory_is_always_a_limit(tmp_path: Path):
    assert "physical memory" in {
        limit.kind for limit in limits(MemoryUsage(0, 0, 0), root=tmp_path)
    }


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel keeps rlimits on memory only on Linux"
)
@pytest.mark.parametrize("name", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_real_rlimit_binds_and_counts_the_same_space_as_the_kernel(name: str):
    code = f"""
import mmap, resource
allocate = lambda size: mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
resource.setrlimit(resource.{name}, ({3 * GIB}, {3 * GIB}))
from memagent.probe.host import HostProbe
probe = HostProbe()
before = probe.used_bytes()
block = allocate(200 * 2**20)
print(probe.device.limit_source, probe.device.limit_bytes, probe.used_bytes() - before)
try:
    allocate({3 * GIB} - probe.used_bytes() + 2**20)
except OSError:
    print("refused")
else:
    print("granted")
allocate({3 * GIB} - probe.used_bytes() - 4 * 2**20)
print("granted")
"""
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert output[:2] == [name, str(3 * GIB)]
    assert abs(int(output[2]) - 200 * 2**20) < 2**20
    assert output[3:] == ["refused", "granted"]


PSI = (
    "some avg10=12.50 avg60=3.00 avg300=1.00 total=123456\n"
    "full avg10=1.25 avg60=0.00 avg300=0.00 total=1\n"
)
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def test_cgroup_v2(tmp_path: Path):
    write(tmp_path / "proc/self/cgroup", "0::/user/job\n")
    own = tmp_path / "sys/fs/cgroup/user/job"
    write(own / "memory.max", "max\n")
    write(own / "memory.current", f"{GIB}\n")
    write(own / "memory.events", "low 0\nhigh 0\nmax 17\noom 4\noom_kill 3\noom_group_kill 0\n")
    write(own / "memory.pressure", PSI)
    write(tmp_path / "proc/pressure/memory", PSI.replace("12.50", "99.00"))
    limited = own.parent
    write(limited / "memory.max", f"{8 * GIB}\n")
    write(limited / "memory.current", f"{6 * GIB}\n")
    write(
        limited / "memory.stat",
        f"anon {3 * GIB}\nfile {3 * GIB}\ninactive_file {2 * GIB}\nactive_file {GIB}\n",
    )
    pressure = read_pressure(root=tmp_path)
    assert (
        pressure.cgroup_used_bytes == 4 * GIB
    )  # of the cgroup with the limit, without inactive file pages
    assert (pressure.oom_kills_total, pressure.pressure_ratio) == (
        3,
        0.125,
    )  # of the process's cgroup


def test_free_memory_is_the_least_that_the_cgroup_and_the_machine_have(tmp_path: Path):
    assert free_host_bytes(root=tmp_path) is None
    write(tmp_path / "proc/meminfo", "MemTotal: 9 kB\nMemAvailable:    2097152 kB\n")
    assert free_host_bytes(root=tmp_path) == 2 * GIB
    write(tmp_path / "proc/self/cgroup", "0::/job\n")
    write(tmp_path / "sys/fs/cgroup/job/memory.max", f"{3 * GIB}\n")
    write(tmp_path / "sys/fs/cgroup/job/memory.current", f"{2 * GIB}\n")
    assert free_host_bytes(root=tmp_path) == GIB


def test_cgroup_v1(tmp_path: Path):
    write(tmp_path / "proc/self/cgroup", "4:memory:/job\n0::/\n")
    write(tmp_path / "proc/pressure/memory", PSI)
    folder = tmp_path / "sys/fs/cgroup/memory/job"
    write(folder / "memory.limit_in_bytes", f"{8 * GIB}\n")
    write(folder / "memory.usage_in_bytes", f"{6 * GIB}\n")
    write(folder / "memory.stat", f"inactive_file 1\ntotal_inactive_file {2 * GIB}\n")
    write(folder / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert read_pressure(root=tmp_path) == Pressure(
        cgroup_used_bytes=4 * GIB, oom_kills_total=2, pressure_ratio=0.125
    )


def test_in_a_container_the_mount_is_the_process_own_cgroup(tmp_path: Path):
    write(tmp_path / "proc/self/cgroup", "0::/docker/0123\n")
    write(tmp_path / "sys/fs/cgroup/memory.current", f"{GIB}\n")
    write(tmp_path / "sys/fs/cgroup/memory.events", "oom_kill 1\n")
    pressure = read_pressure(root=tmp_path)
    assert (pressure.cgroup_used_bytes, pressure.oom_kills_total) == (GIB, 1)


def test_missing_or_malformed_values_are_none(tmp_path: Path):
    assert read_pressure(root=tmp_path) == Pressure()
    write(tmp_path / "proc/self/cgroup", "0::/\n")
    write(tmp_path / "sys/fs/cgroup/memory.current", "much\n")
    write(tmp_path / "sys/fs/cgroup/memory.events", "oom_kill\n")
    write(tmp_path / "proc/pressure/memory", "some avg10=? avg60=0.00\n")
    write(tmp_path / "proc/self/status", "VmLck:\n")
    write(tmp_path / "dev/shm/file", "on the disk, not a mount")
    assert read_pressure(root=tmp_path) == Pressure()


def test_locked_and_pinned_memory_are_added(tmp_path: Path):
    write(tmp_path / "proc/self/status", "VmPeak:\t 100 kB\nVmLck:\t    8 kB\nVmPin:\t   16 kB\n")
    assert read_pressure(root=tmp_path).locked_bytes == 24 * 1024


@linux
def test_locked_memory_is_measured():
    before = read_pressure().locked_bytes
    size = 16 * mmap.PAGESIZE
    with mmap.mmap(-1, size) as block:
        start = ctypes.addressof(buffer := ctypes.c_char.from_buffer(block))
        if ctypes.CDLL(None, use_errno=True).mlock(ctypes.c_void_p(start), ctypes.c_size_t(size)):
            pytest.skip(f"mlock: {os.strerror(ctypes.get_errno())}")
        during = read_pressure().locked_bytes
        del buffer
    assert during - before == size
    assert read_pressure().locked_bytes == before


@linux
@pytest.mark.skipif(not Path("/dev/shm").is_mount(), reason="/dev/shm is not a mount here")
def test_shared_memory_is_measured():
    before = read_pressure()
    with Path(f"/dev/shm/memagent-test-{os.getpid()}").open("wb", buffering=0) as file:
        try:
            file.write(bytes(8 * MIB))
            during = read_pressure()
        finally:
            os.unlink(file.name)
    assert 4 * MIB < during.shm_used_bytes - before.shm_used_bytes < 100 * MIB
    assert during.shm_used_bytes < during.shm_limit_bytes
