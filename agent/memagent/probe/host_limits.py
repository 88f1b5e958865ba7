"""How much memory this process may use on the host, and which limit would be hit first.

Four limits can end a process: RLIMIT_AS (address space mapped), RLIMIT_DATA (private writable memory mapped), the cgroup's
limit and physical memory (both: resident memory of all processes together). Each is compared with what counts against it.
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

_UNLIMITED = 2**60
"""Cgroup v1 writes 2**63 less a page for "no limit"; anything this large is none."""


@dataclass(frozen=True)
class Limit:
    """A limit and what counts against it at the moment it was read, both in bytes."""

    kind: LimitKind
    limit_bytes: int
    used_bytes: int

    @property
    def headroom_bytes(self) -> int:
        return self.limit_bytes - self.used_bytes


class Usage(NamedTuple):
    """What this process (mapped, data) and its tree (resident) hold, in bytes. A tuple, because one is made at each reading."""

    mapped_bytes: int
    data_bytes: int
    resident_bytes: int


@cache
def physical_memory_bytes() -> int:
    """Of the machine. psutil is asked where the system's own call does not tell: importing it takes a tenth of a second."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows, some BSDs
        import psutil

        return int(psutil.virtual_memory().total)


def binding_limit(usage: Usage, *, root: Path = Path("/")) -> Limit:
    """The limit with the least headroom: the one that would be hit first. `root` lets tests bring their own /proc and /sys."""
    return min(limits(usage, root=root), key=lambda limit: limit.headroom_bytes)


def limits(usage: Usage, *, root: Path = Path("/")) -> list[Limit]:
    """All limits that hold for this process."""
    found = [Limit("physical memory", physical_memory_bytes(), usage.resident_bytes)]
    cgroup = cgroup_limit_bytes(root=root)
    if cgroup is not None:
        found.append(Limit("cgroup", cgroup, usage.resident_bytes))
    if sys.platform.startswith(
        "linux"
    ):  # elsewhere the kernel takes these limits and does not keep them
        import resource

        for kind, number, used in (
            ("RLIMIT_AS", resource.RLIMIT_AS, usage.mapped_bytes),
            ("RLIMIT_DATA", resource.RLIMIT_DATA, usage.data_bytes),
        ):
            soft, _ = resource.getrlimit(number)
            if soft != resource.RLIM_INFINITY:
                found.append(Limit(kind, soft, used))  # type: ignore[arg-type]
    return found


@dataclass(frozen=True)
class Cgroup:
    """Where the kernel keeps this process's memory account."""

    version: int
    own: Path
    """Folder of the process's own cgroup, or its nearest parent that can be seen."""
    limited: Path
    """Folder of the cgroup with the smallest limit, on the way up; `own` where there is no limit."""
    limit_bytes: int | None


def cgroup_limit_bytes(*, root: Path = Path("/")) -> int | None:
    """The smallest memory limit of this process's cgroup and its parents, v1 or v2; None where there is none."""
    cgroup = find_cgroup(root=root)
    return cgroup.limit_bytes if cgroup else None


def find_cgroup(*, root: Path = Path("/")) -> Cgroup | None:
    """This process's memory cgroup, v1 or v2; None where there is none to be seen.

    The `0::` line of v2 exists even where v1 holds the memory controller, so `memory` is looked for first.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    paths = {
        controllers: path
        for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2)
    }
    for controllers, path in paths.items():
        if "memory" in controllers.split(","):
            return _cgroup(1, root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes")
    if "" in paths:
        return _cgroup(2, root / "sys/fs/cgroup", paths[""], "memory.max")
    return None


def _cgroup(version: int, mount: Path, path: str, file: str) -> Cgroup | None:
    folders = [folder for folder in _upwards(mount, path) if folder.is_dir()]
    if not folders:
        return None
    limits = [
        (value, folder) for folder in folders if (value := _read_limit(folder / file)) is not None
    ]
    limit, limited = min(limits, default=(None, folders[0]))
    return Cgroup(version, folders[0], limited, limit)


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """The cgroup's folder and its parents up to the mount; inside a container only the mount itself may be visible."""
    relative = os.path.normpath(path).lstrip("/")
    folder = mount / relative if relative and not relative.startswith("..") else mount
    while folder != mount:
        yield folder
        folder = folder.parent
    yield mount


def _read_limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) < _UNLIMITED else None
