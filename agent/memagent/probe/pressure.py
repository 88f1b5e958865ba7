"""How near the host is to its limits apart from this process: the cgroup, /dev/shm, page-locked memory, stalls.

Six small files, read about once a second on a thread of ours. Each reading stands for itself: a file that is missing or says
something else leaves its field None.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from memagent.probe.host_limits import find_cgroup

_KIB = 1024


@dataclass(frozen=True)
class Pressure:
    """The host at one moment; a field is None where the system does not tell it."""

    shm_used_bytes: int | None = None
    """In /dev/shm, by everybody who sees the same one; data-loader workers hand over their batches there."""
    shm_limit_bytes: int | None = None
    """Size of /dev/shm: 64 MiB in a container, unless told otherwise."""
    locked_bytes: int | None = None
    """Memory of this process that can't be swapped out. CUDA's own pinned memory is the driver's and not among it."""
    pressure_ratio: float | None = None
    """Share of the last ten seconds in which some task waited for memory (PSI), in the cgroup where it tells, else on the machine."""
    cgroup_used_bytes: int | None = None
    """Charged to the cgroup whose limit is lowest, without file pages that the kernel gives up at once."""
    oom_kills_total: int | None = None
    """Processes of the cgroup that the kernel killed for want of memory."""


def read_pressure(*, root: Path = Path("/")) -> Pressure:
    """All of it, now. `root` lets tests bring their own /proc, /sys and /dev."""
    cgroup = find_cgroup(root=root)
    used, kills, stall = None, None, None
    if cgroup is not None:
        used = _cgroup_used(cgroup.limited, cgroup.version)
        kills = _value_of(
            cgroup.own / ("memory.events" if cgroup.version == 2 else "memory.oom_control"),
            "oom_kill",
        )
        stall = _stalled(cgroup.own / "memory.pressure")
    shm_used, shm_size = _shm(root / "dev/shm")
    return Pressure(
        shm_used_bytes=shm_used,
        shm_limit_bytes=shm_size,
        locked_bytes=_locked(root / "proc/self/status"),
        pressure_ratio=stall if stall is not None else _stalled(root / "proc/pressure/memory"),
        cgroup_used_bytes=used,
        oom_kills_total=kills,
    )


def _cgroup_used(folder: Path, version: int) -> int | None:
    """As kubelet counts: what is charged less the file pages not used of late, which go before anybody is killed."""
    charged = _number(folder / ("memory.current" if version == 2 else "memory.usage_in_bytes"))
    if charged is None:
        return None
    idle = _value_of(
        folder / "memory.stat", "inactive_file" if version == 2 else "total_inactive_file"
    )
    return max(0, charged - (idle or 0))


def _shm(folder: Path) -> tuple[int | None, int | None]:
    try:
        if not folder.is_mount():  # it would tell of the disk
            return None, None
        sizes = os.statvfs(folder)
    except OSError:
        return None, None
    return (sizes.f_blocks - sizes.f_bfree) * sizes.f_frsize, sizes.f_blocks * sizes.f_frsize


def _locked(status: Path) -> int | None:
    """mlock()ed pages, and those that a device's driver holds on to and accounts for."""
    found = [value for key in ("VmLck:", "VmPin:") if (value := _value_of(status, key)) is not None]
    return sum(found) * _KIB if found else None


def _stalled(file: Path) -> float | None:
    for word in _read(file).partition("\n")[0].split():  # some avg10=0.12 avg60=...
        name, _, value = word.partition("=")
        if name == "avg10" and value.replace(".", "", 1).isdigit():
            return float(value) / 100
    return None


def _value_of(file: Path, key: str) -> int | None:
    for line in _read(file).splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == key and words[1].isdigit():
            return int(words[1])
    return None


def _number(file: Path) -> int | None:
    text = _read(file).strip()
    return int(text) if text.isdigit() else None


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # missing, or refused: PSI may be switched off at boot
        return ""
