"""The binding limit, from real rlimits and from copies of /proc and /sys."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from memagent.probe.host_limits import MemoryUsage, binding_limit, cgroup_limit_bytes, limits

GIB = 2**30


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_cgroup_v2_takes_the_smallest_limit_up_the_tree(tmp_path: Path):
    write(tmp_path / "proc/self/cgroup", "0::/user/job\n")
    write(tmp_path / "sys/fs/cgroup/user/job/memory.max", "max\n")
    write(tmp_path / "sys/fs/cgroup/user/memory.max", f"{4 * GIB}\n")
    write(tmp_path / "sys/fs/cgroup/memory.max", f"{8 * GIB}\n")
    assert cgroup_limit_bytes(root=tmp_path) == 4 * GIB


def test_cgroup_v1_is_found_even_with_a_line_of_v2(tmp_path: Path):
    write(tmp_path / "proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/x\n0::/\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{2 * GIB}\n")
    write(tmp_path / "sys/fs/cgroup/memory.max", f"{GIB}\n")
    assert cgroup_limit_bytes(root=tmp_path) == 2 * GIB


def test_no_limit_is_none(tmp_path: Path):
    assert cgroup_limit_bytes(root=tmp_path) is None
    write(tmp_path / "proc/self/cgroup", "4:memory:/\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert cgroup_limit_bytes(root=tmp_path) is None


def test_the_limit_with_the_least_headroom_binds(tmp_path: Path):
    write(tmp_path / "proc/self/cgroup", "0::/\n")
    write(tmp_path / "sys/fs/cgroup/memory.max", f"{GIB}\n")
    found = binding_limit(
        MemoryUsage(mapped_bytes=GIB, data_bytes=GIB // 2, resident_bytes=GIB // 4), root=tmp_path
    )
    assert (found.kind, found.limit_bytes, found.headroom_bytes) == ("cgroup", GIB, 3 * GIB // 4)


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
import resource
resource.setrlimit(resource.{name}, ({3 * GIB}, {3 * GIB}))
from memagent.probe.host import HostProbe
probe = HostProbe()
before = probe.used_bytes()
block = bytearray(200 * 2**20)
print(probe.device.limit_source, probe.device.limit_bytes, probe.used_bytes() - before)
try:
    bytearray({3 * GIB} - probe.used_bytes() + 2**20)
except MemoryError:
    print("refused")
else:
    print("granted")
bytearray({3 * GIB} - probe.used_bytes() - 4 * 2**20)
print("granted")
"""
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert output[:2] == [name, str(3 * GIB)]
    assert abs(int(output[2]) - 200 * 2**20) < 2**20
    assert output[3:] == ["refused", "granted"]
