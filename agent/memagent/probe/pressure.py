"""Memory pressure on the host outside this process: cgroup, /dev/shm, page-locked memory, stalls.

A thread of memagent reads six small files about once a second. Each reading is independent: if a
file is missing or has unexpected content, its field is None.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from memagent.probe.host_limits import find_cgroup, read_number, read_text

_KIB = 1024


@dataclass(frozen=True)
class Pressure:
    """The host at one moment; a field is None if the system does not report it."""

    shm_used_bytes: int | None = None
    """Used in /dev/shm by all processes that share it. Data-loader workers pass batches there."""
    shm_limit_bytes: int | None = None
    """Size of /dev/shm: 64 MiB in a container by default."""
    locked_bytes: int | None = None
    """Memory of this process that can't be swapped, without CUDA's pinned memory, which belongs to
    the driver."""
    pressure_ratio: float | None = None
    """Share of the last ten seconds in which a task waited for memory (PSI), in the cgroup or, if
    that isn't available, on the machine."""
    cgroup_used_bytes: int | None = None
    """Charged to the cgroup with the lowest limit, without reclaimable file pages."""
    oom_kills_total: int | None = None
    """Processes of the cgroup that the kernel's OOM killer ended."""


def read_pressure(*, root: Path = Path("/")) -> Pressure:
    """Read the current pressure. `root` replaces /proc, /sys and /dev in tests."""
    cgroup = find_cgroup(root=root)
    used, kills, stall = None, None, None
    if cgroup is not None:
        is_v2 = cgroup.version == 2
        used = _cgroup_used(cgroup.limited, is_v2=is_v2)
        events = cgroup.own / ("memory.events" if is_v2 else "memory.oom_control")
        kills = _read_value(events, "oom_kill")
        stall = _read_stall_ratio(cgroup.own / "memory.pressure")
    if stall is None:
        stall = _read_stall_ratio(root / "proc/pressure/memory")
    shm_used, shm_size = _read_shm(root / "dev/shm")
    return Pressure(
        shm_used_bytes=shm_used,
        shm_limit_bytes=shm_size,
        locked_bytes=_locked_bytes(root / "proc/self/status"),
        pressure_ratio=stall,
        cgroup_used_bytes=used,
        oom_kills_total=kills,
    )


def _cgroup_used(folder: Path, *, is_v2: bool) -> int | None:
    """Return the usage as kubelet counts it: without inactive file pages.

    The kernel drops those before it kills a process.
    """
    charged = read_number(folder / ("memory.current" if is_v2 else "memory.usage_in_bytes"))
    if charged is None:
        return None
    name = "inactive_file" if is_v2 else "total_inactive_file"
    return max(0, charged - (_read_value(folder / "memory.stat", name) or 0))


def _read_shm(folder: Path) -> tuple[int | None, int | None]:
    try:
        if not folder.is_mount():  # statvfs would describe the disk
            return None, None
        sizes = os.statvfs(folder)
    except OSError:
        return None, None
    return (sizes.f_blocks - sizes.f_bfree) * sizes.f_frsize, sizes.f_blocks * sizes.f_frsize


def _locked_bytes(status: Path) -> int | None:
    """Return the mlock()ed pages plus those that a device driver has pinned and charged."""
    values = [_read_value(status, key) for key in ("VmLck:", "VmPin:")]
    if values == [None, None]:
        return None
    return sum(value or 0 for value in values) * _KIB


def _read_stall_ratio(file: Path) -> float | None:
    for word in read_text(file).partition("\n")[0].split():  # some avg10=0.12 avg60=...
        name, _, value = word.partition("=")
        if name == "avg10" and value.replace(".", "", 1).isdigit():
            return float(value) / 100
    return None


def _read_value(file: Path, key: str) -> int | None:
    for line in read_text(file).splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == key and words[1].isdigit():
            return int(words[1])
    return None
