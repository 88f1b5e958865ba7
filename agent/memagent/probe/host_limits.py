"""The limits on this process's host memory, and the one that would be hit first.

Four limits can end a process: RLIMIT_AS (mapped address space), RLIMIT_DATA (mapped private
writable memory), the cgroup's limit and physical memory (both: resident memory of all processes
together). Each is compared with the memory that counts against it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

LimitKind = Literal["RLIMIT_AS", "RLIMIT_DATA", "cgroup", "physical memory", "given"]

_UNLIMITED_BYTES = 2**60
"""The value that means "no limit" in a cgroup, or less: v1 writes 2**63 less a page."""


@dataclass(frozen=True)
class MemoryLimit:
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


def binding_limit(usage: MemoryUsage, *, root: Path = Path("/")) -> MemoryLimit:
    """Return the limit with the least headroom. `root` replaces /proc and /sys in tests."""
    return min(limits(usage, root=root), key=lambda limit: limit.headroom_bytes)


def limits(usage: MemoryUsage, *, root: Path = Path("/")) -> list[MemoryLimit]:
    """Return all limits of this process."""
    resident = usage.resident_bytes
    all_limits = [MemoryLimit("physical memory", physical_memory_bytes(), resident)]
    cgroup = cgroup_limit_bytes(root=root)
    if cgroup is not None:
        all_limits.append(MemoryLimit("cgroup", cgroup, resident))
    if sys.platform.startswith("linux"):  # other kernels accept these limits and ignore them
        import resource

        address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
        if address_space != resource.RLIM_INFINITY:
            all_limits.append(MemoryLimit("RLIMIT_AS", address_space, usage.mapped_bytes))
        data, _ = resource.getrlimit(resource.RLIMIT_DATA)
        if data != resource.RLIM_INFINITY:
            all_limits.append(MemoryLimit("RLIMIT_DATA", data, usage.data_bytes))
    return all_limits


@dataclass(frozen=True)
class Cgroup:
    """The memory cgroup of this process.

    The folder `own` is that of the process's cgroup, or of the nearest visible parent. The folder
    `limited` is the one with the smallest limit on the way up, or `own` if there is no limit.
    """

    version: int
    own: Path
    limited: Path
    limit_bytes: int | None


def cgroup_limit_bytes(*, root: Path = Path("/")) -> int | None:
    """Return the smallest memory limit of this process's cgroup and its parents, if any."""
    cgroup = find_cgroup(root=root)
    return cgroup.limit_bytes if cgroup else None


def find_cgroup(*, root: Path = Path("/")) -> Cgroup | None:
    """Find this process's memory cgroup, v1 or v2; None if none is visible."""
    lines = read_text(root / "proc/self/cgroup").splitlines()
    paths = {
        controllers: path
        for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2)
    }
    # The `0::` line of v2 exists even if v1 has the memory controller, so `memory` comes first.
    for controllers, path in paths.items():
        if "memory" in controllers.split(","):
            return _read_cgroup(1, root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes")
    if "" in paths:
        return _read_cgroup(2, root / "sys/fs/cgroup", paths[""], "memory.max")
    return None


def _read_cgroup(version: int, mount: Path, path: str, file: str) -> Cgroup | None:
    folders = [folder for folder in _folders_up_to(mount, path) if folder.is_dir()]
    if not folders:
        return None
    values = [(read_number(folder / file), folder) for folder in folders]
    limits = [(limit, f) for limit, f in values if limit is not None and limit < _UNLIMITED_BYTES]
    limit, limited = min(limits, default=(None, folders[0]))
    return Cgroup(version, folders[0], limited, limit)


def _folders_up_to(mount: Path, path: str) -> Iterator[Path]:
    """Yield the cgroup's folder and its parents. A container may see only the mount itself."""
    relative = os.path.normpath(path).lstrip("/")
    folder = mount / relative if relative and not relative.startswith("..") else mount
    while folder != mount:
        yield folder
        folder = folder.parent
    yield mount


def read_number(file: Path) -> int | None:
    """Return the number in a file; None if it's missing or has something else."""
    text = read_text(file).strip()
    return int(text) if text.isdigit() else None


def read_text(file: Path) -> str:
    """Return the text of a file; "" if it's missing or can't be read."""
    try:
        return file.read_text()
    except OSError:
        return ""
