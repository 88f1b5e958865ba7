"""Time that the leak finder takes at each step boundary of the exams' scripts.

`timed` runs as a script of its own, in place of `memagent`: it times the monitor's work on the
training thread call by call, and writes the times as the process ends. So do the calls in which
another thread holds the interpreter's lock for a census.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMES_FILE = "BENCHMARK_STEP_TIMES"
"""Environment variable: where a timed process writes."""
SLICE_S = 0.02
"""What the finder may take of the training thread at one boundary."""


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds at the boundaries with any work, and its share of the process' time."""

    steps: int
    over_20_ms: int
    """Boundaries that took more than a slice may."""
    most_ms: float
    p99_ms: float
    most_wall_ms: float
    p99_wall_ms: float
    most_pass_ms: float
    """Processor time of the longest pass of another thread."""
    total_s: float
    """Processor time of both threads, without what follows the last step."""
    share: float

    @property
    def text(self) -> str:
        return (
            f"most {self.most_ms:.0f} ms, p99 {self.p99_ms:.0f} ms, {self.over_20_ms} over 20 ms "
            f"of {self.steps} boundaries (on the clock {self.most_wall_ms:.0f}, "
            f"{self.p99_wall_ms:.0f}), a pass {self.most_pass_ms:.0f} ms, {self.total_s:.2f} s, "
            f"{self.share:.1%}"
        )


def read(file: Path) -> StepTimes | None:
    """Return the times that a process wrote, None if it didn't."""
    return summary(**json.loads(file.read_text())) if file.exists() else None


def summary(
    processor_s: Sequence[float], wall_s: Sequence[float], pass_s: Sequence[float], run_s: float
) -> StepTimes:
    """run_s: how long the process ran. processor_s, wall_s: of each boundary with any work."""
    total_s = sum(processor_s) + sum(pass_s)
    return StepTimes(
        len(processor_s),
        sum(seconds > SLICE_S for seconds in processor_s),
        *(round(1e3 * figure, 1) for figure in (*_most(processor_s), *_most(wall_s))),
        most_pass_ms=round(1e3 * max(pass_s, default=0.0), 1),
        total_s=round(total_s, 3),
        share=round(total_s / run_s, 5) if run_s else 0.0,
    )


def total(cases: Sequence[StepTimes]) -> str:
    """Sum up all cases: the worst boundary of any, how many were too long, the median share."""
    shares = sorted(case.share for case in cases)
    worst = max(cases, key=lambda case: case.most_ms)
    return (
        f"finder: most {worst.most_ms:.0f} ms at a boundary, worst p99 "
        f"{max(case.p99_ms for case in cases):.0f} ms, {sum(case.over_20_ms for case in cases)} of "
        f"{sum(case.steps for case in cases)} boundaries over 20 ms, median share "
        f"{shares[len(shares) // 2]:.1%}, most {shares[-1]:.1%}"
    )


def _most(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the maximum and the 99th percentile."""
    ordered = sorted(seconds) or [0.0]
    return ordered[-1], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


class _Timer:
    """Times the calls of one method in this process."""

    def __init__(self) -> None:
        self.processor_s: list[float] = []
        self.wall_s: list[float] = []

    def wrap(self, kind: type, name: str, has_work: Callable[[Any], bool]) -> None:
        method = getattr(kind, name)

        def timed(instance: Any) -> Any:
            if not has_work(instance):
                return method(instance)
            processor_s, wall_s = time.thread_time(), time.perf_counter()
            try:
                return method(instance)
            finally:
                self.processor_s.append(time.thread_time() - processor_s)
                self.wall_s.append(time.perf_counter() - wall_s)

        setattr(kind, name, timed)


def main(file: str) -> int:
    """Run `memagent` with the arguments of this process, timed."""
    from memagent import cli
    from memagent.leaks import background_pass, monitor, user_code

    # a search begins at the script's variables: these timers are none of them
    user_code._LIBRARIES = (*user_code._LIBRARIES, str(Path(__file__).resolve()))

    began_s, pid = time.perf_counter(), os.getpid()
    steps, passes = _Timer(), _Timer()
    steps.wrap(
        monitor.LeakMonitor,
        "after_step",
        lambda item: item._has_finder and (item._finder.is_busy or item._checks.is_active),
    )
    passes.wrap(background_pass.BackgroundPass, "_run", lambda _: True)

    def write() -> None:
        if os.getpid() == pid:
            times = {
                "processor_s": steps.processor_s,
                "wall_s": steps.wall_s,
                "pass_s": passes.processor_s,
                "run_s": time.perf_counter() - began_s,
            }
            Path(file).write_text(json.dumps(times))

    atexit.register(write)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main(os.environ.pop(TIMES_FILE)))
