"""Measurements of a rehearsed process, written to a file after each step.

The process that started it reads the file: whatever ends the script, the last state is there.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from memagent.rehearsal.reads import HostReads, Place
from memagent.rehearsal.sandbox import reserve_of

MAX_STEPS = 20
"""Steps after which a rehearsal ends even if the peak grows at each."""
MIN_STEPS = 2
_REPETITIONS = 2
"""Steps without a higher peak after which it has repeated."""
_MAX_READS = 10
_IGNORED_ENDS = 50
"""Steps after the end that a script may begin, having caught the exception."""


class RehearsalEnd(SystemExit):
    """Raised in the script to end it. It isn't an Exception, which scripts catch."""


class Measurement:
    """Counts optimizer steps, reads the peaks after each, and ends the script."""

    def __init__(self, torch: Any, path: Path, steps: int | None) -> None:
        self._torch = torch
        self._path = path
        self._limit = steps
        self._counts: dict[int, int] = {}
        self._peaks: dict[int, dict[str, int]] = {}
        self._ignored_ends = 0
        self._backwards = 0
        self.steps = 0
        self.peaks: list[int] = []
        """The highest peak so far on any device, after each step."""
        self.status = "running"
        self.details: dict[str, Any] = {}
        self.reads = HostReads(self._end_waiting)
        self.leave: Callable[[], None] = sys.exit
        self.phase_peaks: Callable[[], Mapping[str, int]] = dict

    def after_step(self, optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        """Count a step of an optimizer: torch's global hook calls this."""
        count = self._counts[id(optimizer)] = self._counts.get(id(optimizer), 0) + 1
        if self.status != "running":
            self._end_again()
        if count <= self.steps:  # another optimizer has made this step already
            return
        self.steps = count
        self.reads.end_step()
        self.read_peaks()
        self.peaks.append(max((peak["allocated"] for peak in self._peaks.values()), default=0))
        self.write()
        if self._is_enough():
            self.status = "stopped"
            raise RehearsalEnd(0)

    def count_backwards(self, backward: Callable[..., None]) -> Callable[..., None]:
        """Return the function, and count its calls: a script may need no optimizer of torch."""

        @functools.wraps(backward)
        def counted(*arguments: Any, **keywords: Any) -> None:
            self._backwards += 1
            backward(*arguments, **keywords)

        return counted

    def read_peaks(self) -> None:
        """Read the allocator's peaks; a script that resets them hides none of earlier steps."""
        cuda = self._torch.cuda
        if not cuda.is_initialized():
            return
        for device in range(cuda.device_count()):
            stats = cuda.memory_stats(device)
            if not stats.get("reserved_bytes.all.peak"):
                continue
            readings = {
                "allocated": stats["allocated_bytes.all.peak"],
                "reserved": stats["reserved_bytes.all.peak"],
                "retries": stats["num_alloc_retries"],
                "ooms": stats["num_ooms"],
            }
            old = self._peaks.get(device, readings)
            self._peaks[device] = {key: max(old[key], readings[key]) for key in readings}

    def write(self) -> None:
        """Write the state; a process that is killed leaves the last one."""
        state = {
            "status": self.status,
            "steps": self.steps,
            "backwards": self._backwards,
            "peaks": self.peaks,
            "devices": [
                {"index": device, **readings} for device, readings in sorted(self._peaks.items())
            ],
            "phases": dict(self.phase_peaks()),
            "host_peak_bytes": peak_resident_bytes(),
            "reads": self.reads.most_common(_MAX_READS),
            **self.details,
        }
        try:
            self._replace(json.dumps(state))
        except OSError:  # the script has filled the disk
            reserve_of(self._path).unlink(missing_ok=True)
            self._replace(json.dumps(state))

    def _replace(self, text: str) -> None:
        draft = self._path.with_suffix(".draft")
        draft.write_text(text)
        draft.replace(self._path)

    def _is_enough(self) -> bool:
        if self._limit is not None:
            return self.steps >= self._limit
        recent = self.peaks[-_REPETITIONS - 1 :]
        has_repeated = len(recent) > _REPETITIONS and recent[0] == recent[-1]
        return (has_repeated and self.steps >= MIN_STEPS) or self.steps >= MAX_STEPS

    def _end_waiting(self, place: Place) -> None:
        if self.status == "running":
            self.status = "waiting"
            self.details["place"] = {"file": place.file, "line": place.line}
        self._end_again()

    def _end_again(self) -> None:
        """End the script, at last without its consent: it may catch every exception."""
        self._ignored_ends += 1
        if self._ignored_ends > _IGNORED_ENDS:
            self.write()
            self.leave()
        raise RehearsalEnd(0)


def peak_resident_bytes() -> int:
    """Return the peak of this program: `ru_maxrss` keeps that of the process that started it."""
    match = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(match[1]) * 1024 if match else 0
