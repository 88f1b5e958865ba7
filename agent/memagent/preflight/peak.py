"""The highest use of memory while something is tried.

A CUDA device counts its own peak. Nobody else does: there a thread of ours looks twice a millisecond for as long as the trial takes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType

from memagent.probe import Probe

LOOK_EVERY_S = 0.0005


class PeakMonitor:
    """`with PeakMonitor(probes) as watch: ...`; then `watch.more_bytes()` is how far each device went above where it began.

    The phase must have been cut where it is opened: a device's own counter counts from the last mark.
    """

    def __init__(self, probes: Sequence[Probe]) -> None:
        self._probes = probes
        self._before = self._highest = [0] * len(probes)
        self._stop = threading.Event()
        self._looking = threading.Thread(
            target=self._look_on, name="memagent-preflight", daemon=True
        )

    def __enter__(self) -> PeakMonitor:
        self._looking.start()  # its stack is memory too: what counts as before comes after
        self._before = self._highest = [probe.used_bytes() for probe in self._probes]
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._looking.join()
        self._look()
        for index, probe in enumerate(self._probes):
            exact = getattr(probe, "peak_since_mark", None)
            if exact is not None:
                self._highest[index] = max(self._highest[index], exact())

    def more_bytes(self) -> dict[str, int]:
        """By device id."""
        sizes = zip(self._probes, self._before, self._highest, strict=True)
        return {probe.device.id: max(0, highest - before) for probe, before, highest in sizes}

    def _look_on(self) -> None:
        while not self._stop.is_set():
            self._look()
            time.sleep(LOOK_EVERY_S)

    def _look(self) -> None:
        self._highest = [
            max(*both) for both in zip(self._highest, map(_used, self._probes), strict=True)
        ]


def _used(probe: Probe) -> int:
    return 0 if hasattr(probe, "peak_since_mark") else probe.used_bytes()
