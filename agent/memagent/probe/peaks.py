"""torch's peak counters, read and reset at every phase's end, while whoever else reads them sees what they would without us.

torch keeps one set of peak counters a device (pytorch issue 16266), and a phase's peak is exact only if the counters are reset where
the phase begins. So, at each of our boundaries:
1. All `peak` leaves of the raw statistics are folded into `saved`, what the user must still see; then the raw counters are reset.
2. The functions of `torch._C` that hand out statistics are wrapped: a reader gets max(saved, raw) in every `peak` leaf. Python looks
   them up at each call, so this also holds for `from torch.cuda import max_memory_allocated` made before we came.
3. A reset by the user (TraceML each step, torchtitan after each log) first takes our phase's peak along, then clears `saved`.
4. When the last probe has gone the wrappers stay until the saved peaks no longer matter: the next reset by the user.

Reading and resetting are two calls: a peak that another Python thread makes and frees between them is missed by both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

Stats = dict[str, Any]
"""The nested dict of c10::CachingDeviceAllocator::DeviceStats: statistic -> pool -> {current, peak, allocated, freed}."""

_READERS = ("_cuda_memoryStats", "_accelerator_getDeviceStats")
_RESETTERS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")


class DevicePeaks:
    """The peaks of one device: what the user must see, and what our current phase has reached."""

    __slots__ = ("_paths", "_saved", "allocated", "reserved")

    def __init__(self, stats: Stats) -> None:
        self._paths = list(_peak_paths(stats))
        self._saved = [0] * len(self._paths)
        self.allocated = self.reserved = 0

    def carry(self, stats: Stats) -> None:
        """The counters are about to be reset: keep our own phase's peaks."""
        self.allocated = max(self.allocated, stats["allocated_bytes"]["all"]["peak"])
        self.reserved = max(self.reserved, stats["reserved_bytes"]["all"]["peak"])

    def fold(self, stats: Stats) -> None:
        """Keep the user's peaks, which we are about to reset."""
        self._saved = list(
            map(max, self._saved, [_leaf(stats, path)["peak"] for path in self._paths])
        )

    def lift(self, stats: Stats) -> Stats:
        """`stats` with the peaks that the user would see without us."""
        for path, saved in zip(self._paths, self._saved, strict=True):
            leaf = _leaf(stats, path)
            leaf["peak"] = max(leaf["peak"], saved)
        return stats

    def forget(self) -> None:
        """The user has reset the counters."""
        self._saved = [0] * len(self._paths)


class PeakCounters:
    """Shares the counters of all devices between us and everybody else; `core` is `torch._C`, or what stands for it."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._lock = threading.RLock()
        self._devices: dict[int, DevicePeaks] = {}
        self._originals: dict[str, Any] = {}
        self._wrappers: dict[str, Any] = {}
        self._users = 0
        self._read: Callable[[int], Stats] = core._cuda_memoryStats
        self._reset: Callable[[int], None] = core._cuda_resetPeakMemoryStats

    def serves(self, core: Any) -> bool:
        return self._core is core

    def open(self) -> None:
        """One more probe reads through here."""
        with self._lock:
            self._users += 1
            if not self._originals:
                self._install()

    def close(self) -> None:
        """One probe less. The wrappers go now where nothing is saved, else with the user's next reset."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and not self._devices:
                self._uninstall()

    def take(self, device: int) -> tuple[int, int, Stats]:
        """Most allocated and reserved since the last call, in bytes, and the raw statistics; the counters start anew."""
        with self._lock:
            stats = self._read(device)
            peaks = self._peaks_of(device, stats)
            peaks.carry(stats)
            peaks.fold(stats)
            self._reset(device)
            allocated, reserved = peaks.allocated, peaks.reserved
            peaks.allocated = peaks.reserved = 0
            return allocated, reserved, stats

    def look(self, device: int) -> int:
        """Most allocated since the last `take`, in bytes; nothing is reset."""
        with self._lock:
            stats = self._read(device)
            peaks = self._peaks_of(device, stats)
            return max(peaks.allocated, int(stats["allocated_bytes"]["all"]["peak"]))

    def _peaks_of(self, device: int, stats: Stats) -> DevicePeaks:
        found = self._devices.get(device)
        if found is None:
            found = self._devices[device] = DevicePeaks(stats)
        return found

    def _install(self) -> None:
        for names, wrap in ((_READERS, self._wrap_reader), (_RESETTERS, self._wrap_resetter)):
            for name in names:
                original = getattr(self._core, name, None)
                if original is not None:
                    self._originals[name] = original
                    self._wrappers[name] = wrap(original)
                    setattr(self._core, name, self._wrappers[name])

    def _uninstall(self) -> None:
        """Put the originals back, but not over somebody who wrapped our wrapper meanwhile; ours then changes nothing."""
        for name, original in self._originals.items():
            if getattr(self._core, name) is self._wrappers[name]:
                setattr(self._core, name, original)
        self._originals.clear()
        self._wrappers.clear()

    def _wrap_reader(self, original: Callable[[int], Stats]) -> Callable[[int], Stats]:
        def read(device: int) -> Stats:
            with self._lock:
                stats = original(device)
                peaks = self._devices.get(device)
                return stats if peaks is None else peaks.lift(stats)

        return read

    def _wrap_resetter(self, original: Callable[[int], None]) -> Callable[[int], None]:
        def reset(device: int) -> None:
            with self._lock:
                if self._users == 0:
                    self._devices.pop(device, None)
                    if not self._devices:
                        self._uninstall()
                else:
                    stats = self._read(device)
                    peaks = self._peaks_of(device, stats)
                    peaks.carry(stats)
                    peaks.forget()
                original(device)

        return reset


_shared: PeakCounters | None = None
_shared_lock = threading.Lock()


def shared_counters(core: Any) -> PeakCounters:
    """The one `PeakCounters` of the process, for `core` = `torch._C`."""
    global _shared  # noqa: PLW0603 - the counters are the process's
    with _shared_lock:
        if _shared is None or not _shared.serves(core):
            _shared = PeakCounters(core)
        return _shared


def _peak_paths(stats: Stats) -> list[tuple[str, str | None]]:
    """Where `peak` leaves are: (statistic, pool), or (statistic, None) for those without pools.

    Statistics with other shapes, such as `reserved_bytes_by_private_pools` with its tuple keys, have none.
    """
    paths: list[tuple[str, str | None]] = []
    for name, value in stats.items():
        if not isinstance(value, dict):
            continue
        if "peak" in value:
            paths.append((name, None))
        paths += [
            (name, pool)
            for pool, leaf in value.items()
            if isinstance(leaf, dict) and "peak" in leaf
        ]
    return paths


def _leaf(stats: Stats, path: tuple[str, str | None]) -> dict[str, int]:
    name, pool = path
    found: dict[str, int] = stats[name] if pool is None else stats[name][pool]
    return found
