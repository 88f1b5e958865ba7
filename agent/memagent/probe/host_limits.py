"""The limits on this process's host memory, the one that would be hit first, and memory pressure.

Four limits can end a process: RLIMIT_AS (mapped address space), RLIMIT_DATA (mapped private
writable memory), the cgroup's limit and physical memory (both: resident memory of all processes
together). Each is compared with the memory that counts against it.

Pressure comes from outside this process: the cgroup, /dev/shm, page-locked memory, stalls. A thread
of memagent reads six small files about once a second. Each reading is independent: if a file is
missing or has unexpected content, its field is None.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

LimitKind = Literal["RLIMIT_AS", "RLIMIT_DATA", "cgroup", "physical memory", "given"]

_BLOCK_BYTES = 2**16
_FULL_BLOCK_BYTES = 2**10
"""A shorter block is the last: the kernel writes whole lines to pages of its own."""
_UNLIMITED_BYTES = 2**60
"""The value that means "no limit" in a cgroup, or less: v1 writes 2**63 less a page."""


class MemoryLimit(msgspec.Struct, frozen=True):
    """A limit, and the memory that counted against it when it was read. Bytes."""

    kind: LimitKind
    limit_bytes: int
    used_bytes: int

    @property
    def headroom_bytes(self) -> int:
        return self.limit_bytes - self.used_bytes


class MemoryUsage(NamedTuple):
    """Memory of this process (mapped, data) and of its tree (resident), in bytes.

    A tuple, because each reading creates one.
    """

    mapped_bytes: int
    data_bytes: int
    resident_bytes: int


@cache
def physical_memory_bytes() -> int:
    """Return the machine's memory."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows, some BSDs
        import psutil  # takes a tenth of a second

        return int(psutil.virtual_memory().total)


def binding_limit(
    usage: MemoryUsage, cgroup: Cgroup | None = None, *, root: Path = Path("/")
) -> MemoryLimit:
    """Return the limit with the least headroom. `root` replaces /proc and /sys in tests."""
    return min(limits(usage, cgroup, root=root), key=lambda limit: limit.headroom_bytes)


def limits(
    usage: MemoryUsage, cgroup: Cgroup | None = None, *, root: Path = Path("/")
) -> list[MemoryLimit]:
    """Return all limits of this process. `cgroup` is what `find_cgroup` has just returned."""
    resident = usage.resident_bytes
    all_limits = [MemoryLimit("physical memory", physical_memory_bytes(), resident)]
    cgroup = cgroup or find_cgroup(root=root)
    if cgroup is not None and cgroup.limit_bytes is not None:
        all_limits.append(MemoryLimit("cgroup", cgroup.limit_bytes, resident))
    if sys.platform.startswith("linux"):  # other kernels accept these limits and ignore them
        import resource

        address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
        if address_space != resource.RLIM_INFINITY:
            all_limits.append(MemoryLimit("RLIMIT_AS", address_space, usage.mapped_bytes))
        data, _ = resource.getrlimit(resource.RLIMIT_DATA)
        if data != resource.RLIM_INFINITY:
            all_limits.append(MemoryLimit("RLIMIT_DATA", data, usage.data_bytes))
    return all_limits


def free_host_bytes(*, root: Path = Path("/")) -> int | None:
    """Return the free bytes of the cgroup or of the machine, whichever has fewer."""
    available = _value(read_text(f"{root}/proc/meminfo"), "MemAvailable:")
    free = [] if available is None else [available * _KIB]
    cgroup = find_cgroup(root=root)
    if cgroup is not None and cgroup.limit_bytes is not None:
        used = _cgroup_used(cgroup.limited, is_v2=cgroup.version == 2)
        free += [] if used is None else [cgroup.limit_bytes - used]
    return min(free, default=None)


class Cgroup(msgspec.Struct, frozen=True):
    """The memory cgroup of this process.

    The folder `own` is that of the process's cgroup, or of the nearest visible parent. The folder
    `limited` is the one with the smallest limit on the way up, or `own` if there is no limit.
    """

    version: int
    own: Path
    limited: Path
    limit_bytes: int | None


def find_cgroup(*, root: Path = Path("/")) -> Cgroup | None:
    """Find this process's memory cgroup, v1 or v2; None if none is visible."""
    version, folders = _cgroup_folders(root, read_text(f"{root}/proc/self/cgroup"))
    if not folders:
        return None
    file = "memory.limit_in_bytes" if version == 1 else "memory.max"
    values = [(read_number(f"{folder}/{file}"), folder) for folder in folders]
    limits = [(limit, f) for limit, f in values if limit is not None and limit < _UNLIMITED_BYTES]
    limit, limited = min(limits, default=(None, folders[0]))
    return Cgroup(version, folders[0], limited, limit)


@lru_cache(maxsize=4)
def _cgroup_folders(root: Path, text: str) -> tuple[int, tuple[Path, ...]]:
    """Return the version and the visible folders of the cgroup that /proc/self/cgroup names.

    They exist as long as the process is in it.
    """
    lines = text.splitlines()
    paths = {
        controllers: path
        for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2)
    }
    # The `0::` line of v2 exists even if v1 has the memory controller, so `memory` comes first.
    for controllers, path in paths.items():
        if "memory" in controllers.split(","):
            return 1, tuple(_folders_up_to(root / "sys/fs/cgroup/memory", path))
    return 2, tuple(_folders_up_to(root / "sys/fs/cgroup", paths[""])) if "" in paths else ()


def _folders_up_to(mount: Path, path: str) -> Iterator[Path]:
    """Yield the cgroup's folder and its parents. A container may see only the mount itself."""
    relative = os.path.normpath(path).lstrip("/")
    # inside a cgroup namespace, the path of a cgroup outside of it starts with /..
    folder = mount / relative if relative and not relative.startswith("..") else mount
    for visible in (folder, *folder.parents):
        if visible.is_dir():
            yield visible
        if visible == mount:
            return


def read_number(file: str) -> int | None:
    """Return the number in a file; None if it's missing or has something else."""
    text = read_text(file).strip()
    return int(text) if text.isdigit() else None


def read_text(file: str) -> str:
    """Return the text of a file; "" if it's missing or can't be read.

    System calls alone: `Path.read_text` takes three times as long.
    """
    content = b""
    with suppress(OSError):
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        identity = file_id(fd)
        try:
            while block := os.read(fd, _BLOCK_BYTES):
                content += block
                if len(block) < _FULL_BLOCK_BYTES:
                    break
        finally:
            close_own(fd, identity)
    return content.decode(errors="replace")


def file_id(fd: int) -> tuple[int, int] | None:
    """Return device and inode of an open file; None if the number is unused."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def close_own(fd: int, identity: tuple[int, int] | None) -> None:
    """Close a file, unless the script has closed it and the number is now that of another one."""
    if file_id(fd) == identity is not None:
        os.close(fd)


_KIB = 1024


class Pressure(msgspec.Struct, frozen=True):
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


def read_pressure(cgroup: Cgroup | None = None, *, root: Path = Path("/")) -> Pressure:
    """Read the current pressure. `root` replaces /proc, /sys and /dev in tests."""
    cgroup = cgroup or find_cgroup(root=root)
    used, kills, stall = None, None, None
    if cgroup is not None:
        is_v2 = cgroup.version == 2
        used = _cgroup_used(cgroup.limited, is_v2=is_v2)
        events = f"{cgroup.own}/{'memory.events' if is_v2 else 'memory.oom_control'}"
        kills = _value(read_text(events), "oom_kill")
        stall = _read_stall_ratio(f"{cgroup.own}/memory.pressure")
    if stall is None:
        stall = _read_stall_ratio(f"{root}/proc/pressure/memory")
    shm_used, shm_size = _read_shm(root / "dev/shm")
    return Pressure(
        shm_used_bytes=shm_used,
        shm_limit_bytes=shm_size,
        locked_bytes=_locked_bytes(f"{root}/proc/self/status"),
        pressure_ratio=stall,
        cgroup_used_bytes=used,
        oom_kills_total=kills,
    )


def _cgroup_used(folder: Path, *, is_v2: bool) -> int | None:
    """Return the usage as kubelet counts it: without inactive file pages.

    The kernel drops those before it kills a process.
    """
    charged = read_number(f"{folder}/{'memory.current' if is_v2 else 'memory.usage_in_bytes'}")
    if charged is None:
        return None
    name = "inactive_file" if is_v2 else "total_inactive_file"
    return max(0, charged - (_value(read_text(f"{folder}/memory.stat"), name) or 0))


def _read_shm(folder: Path) -> tuple[int | None, int | None]:
    try:
        if not folder.is_mount():  # statvfs would describe the disk
            return None, None
        sizes = os.statvfs(folder)
    except OSError:
        return None, None
    return (sizes.f_blocks - sizes.f_bfree) * sizes.f_frsize, sizes.f_blocks * sizes.f_frsize


def _locked_bytes(status: str) -> int | None:
    """Return the mlock()ed pages plus those that a device driver has pinned and charged."""
    text = read_text(status)
    values = [_value(text, key) for key in ("VmLck:", "VmPin:")]
    if values == [None, None]:
        return None
    return sum(value or 0 for value in values) * _KIB


def _read_stall_ratio(file: str) -> float | None:
    for word in read_text(file).partition("\n")[0].split():  # some avg10=0.12 avg60=...
        name, _, value = word.partition("=")
        if name == "avg10" and value.replace(".", "", 1).isdigit():
            return float(value) / 100
    return None


def _value(text: str, key: str) -> int | None:
    """Return the number of the line that begins with the word `key`."""
    for separator in (" ", "\t"):
        _, _, rest = f"\n{text}".partition(f"\n{key}{separator}")
        words = rest.partition("\n")[0].split()
        if words and words[0].isdigit():
            return int(words[0])
    return None
