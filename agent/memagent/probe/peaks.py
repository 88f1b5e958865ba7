"""torch's peak counters, read and reset at every phase without an effect on other readers.

torch has one set of peak counters per device (pytorch issue 16266). A phase's peak is exact only if
a reset happens at the start of the phase. So, at each boundary of a phase:

1. `read_and_reset` saves all `peak` values of the raw statistics for the user, then resets them.
2. The functions of `torch._C` that return statistics are wrapped: a reader gets max(saved, raw) for
   every `peak`. Python looks them up at each call, so this works even for `from torch.cuda import
   max_memory_allocated` before memagent's import.
3. When the user resets the counters (TraceML each step, torchtitan after each log), the wrapper
   first saves the current phase's peak for memagent, then clears the user's saved peaks.
4. After the last probe closes, the wrappers stay until the user's next reset, which makes the saved
   peaks obsolete.

Reading and resetting are two calls. A peak that another Python thread allocates and frees between
them is lost for both sides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

CudaStats = dict[str, Any]
"""The nested dict of c10::CachingDeviceAllocator::DeviceStats: statistic -> pool -> {current, peak,
allocated, freed}."""

_READERS = ("_cuda_memoryStats", "_accelerator_getDeviceStats")
_RESETTERS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")


class DevicePeaks:
    """The peaks of one device: the user's, and memagent's for the current phase."""

    __slots__ = ("_paths", "_user_peaks", "allocated", "reserved")

    def __init__(self, stats: CudaStats) -> None:
        self._paths = _peak_paths(stats)
        self._user_peaks = [0] * len(self._paths)
        self.allocated = 0
        self.reserved = 0

    def save_phase_peaks(self, stats: CudaStats) -> None:
        """Save memagent's peaks before a reset."""
        self.allocated = max(self.allocated, stats["allocated_bytes"]["all"]["peak"])
        self.reserved = max(self.reserved, stats["reserved_bytes"]["all"]["peak"])

    def save_user_peaks(self, stats: CudaStats) -> None:
        """Save the user's peaks before memagent resets the counters."""
        self._user_peaks = list(
            map(max, self._user_peaks, [_counter(stats, path)["peak"] for path in self._paths])
        )

    def restore_user_peaks(self, stats: CudaStats) -> CudaStats:
        """Return `stats` with the peaks that the user would see without memagent."""
        for path, peak in zip(self._paths, self._user_peaks, strict=True):
            counter = _counter(stats, path)
            counter["peak"] = max(counter["peak"], peak)
        return stats

    def clear_user_peaks(self) -> None:
        """Drop the user's peaks after the user's reset."""
        self._user_peaks = [0] * len(self._paths)


class PeakCounters:
    """Shares the counters of all devices between memagent and the user.

    `core` is `torch._C` or a stand-in for it.
    """

    def __init__(self, core: Any) -> None:
        self.core = core
        self._lock = threading.RLock()
        self._devices: dict[int, DevicePeaks] = {}
        self._originals: dict[str, Any] = {}
        self._wrappers: dict[str, Any] = {}
        self._probes = 0
        # the originals, bound before the wrappers are installed
        self._read: Callable[[int], CudaStats] = core._cuda_memoryStats
        self._reset: Callable[[int], None] = core._cuda_resetPeakMemoryStats

    def open(self) -> None:
        """Add a probe; the first one installs the wrappers."""
        with self._lock:
            self._probes += 1
            if not self._originals:
                self._install()

    def close(self) -> None:
        """Remove a probe. The wrappers go now, or with saved peaks at the user's next reset."""
        with self._lock:
            self._probes -= 1
            # saved peaks are still the user's: without wrappers they would be lost
            if self._probes == 0 and not self._devices:
                self._uninstall()

    def read_and_reset(self, device: int) -> tuple[int, int, CudaStats]:
        """Return the peaks of allocated and reserved bytes since the last call, and raw stats."""
        with self._lock:
            stats = self._read(device)
            peaks = self._peaks_of(device, stats)
            peaks.save_phase_peaks(stats)
            peaks.save_user_peaks(stats)
            self._reset(device)
            allocated, reserved = peaks.allocated, peaks.reserved
            peaks.allocated = peaks.reserved = 0
            return allocated, reserved, stats

    def peak_allocated(self, device: int) -> int:
        """Return the peak of allocated bytes since the last reset by memagent, without a reset."""
        with self._lock:
            stats = self._read(device)
            peaks = self._peaks_of(device, stats)
            return max(peaks.allocated, int(stats["allocated_bytes"]["all"]["peak"]))

    def _peaks_of(self, device: int, stats: CudaStats) -> DevicePeaks:
        peaks = self._devices.get(device)
        if peaks is None:
            peaks = self._devices[device] = DevicePeaks(stats)
        return peaks

    def _install(self) -> None:
        for names, wrap in ((_READERS, self._wrap_reader), (_RESETTERS, self._wrap_resetter)):
            for name in names:
                original = getattr(self.core, name, None)
                if original is not None:
                    self._originals[name] = original
                    self._wrappers[name] = wrap(original)
                    setattr(self.core, name, self._wrappers[name])

    def _uninstall(self) -> None:
        """Restore the originals, except where another library has wrapped our wrapper since.

        Without devices our wrapper then changes nothing.
        """
        for name, original in self._originals.items():
            # anything else belongs to a library that wrapped later
            if getattr(self.core, name) is self._wrappers[name]:
                setattr(self.core, name, original)
        self._originals.clear()
        self._wrappers.clear()

    def _wrap_reader(self, original: Callable[[int], CudaStats]) -> Callable[[int], CudaStats]:
        def read(device: int) -> CudaStats:
            # The lock keeps a reader from seeing raw counters between a read and its reset.
            with self._lock:
                stats = original(device)
                peaks = self._devices.get(device)
                return stats if peaks is None else peaks.restore_user_peaks(stats)

        return read

    def _wrap_resetter(self, original: Callable[[int], None]) -> Callable[[int], None]:
        def reset(device: int) -> None:
            with self._lock:
                # after memagent: this reset makes the saved peaks obsolete
                if self._probes == 0:
                    self._devices.pop(device, None)
                    if not self._devices:
                        self._uninstall()
                else:
                    stats = self._read(device)
                    peaks = self._peaks_of(device, stats)
                    peaks.save_phase_peaks(stats)
                    peaks.clear_user_peaks()
                original(device)

        return reset


_shared: PeakCounters | None = None
_shared_lock = threading.Lock()


def shared_counters(core: Any) -> PeakCounters:
    """Return the one `PeakCounters` of the process, for `core` = `torch._C`."""
    global _shared  # noqa: PLW0603 - the counters belong to the process
    with _shared_lock:
        if _shared is None or _shared.core is not core:
            _shared = PeakCounters(core)
        return _shared


def _peak_paths(stats: CudaStats) -> list[tuple[str, str | None]]:
    """Return the places of `peak` values: (statistic, pool), or (statistic, None) without pools.

    Statistics of another form, such as `reserved_bytes_by_private_pools` with its tuple keys, have
    none.
    """
    paths: list[tuple[str, str | None]] = []
    for name, value in stats.items():
        if not isinstance(value, dict):
            continue
        if "peak" in value:
            paths.append((name, None))
        paths += [
            (name, pool)
            for pool, counter in value.items()
            if isinstance(counter, dict) and "peak" in counter
        ]
    return paths


def _counter(stats: CudaStats, path: tuple[str, str | None]) -> dict[str, int]:
    name, pool = path
    counter: dict[str, int] = stats[name] if pool is None else stats[name][pool]
    return counter
