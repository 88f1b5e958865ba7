"""The machine on which figures were measured."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil


def describe() -> dict[str, Any]:
    """Describe the machine. `load` is the mean number of running processes over five minutes, this
    benchmark's included.
    """
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": psutil.cpu_count(),
        "load": psutil.getloadavg()[1],
    }


@contextmanager
def busy_processes(count: int, nice: int = 0) -> Iterator[None]:
    """Run `count` processes that use all of their processor time."""
    code = f"import os; os.nice({nice})\nwhile True: pass"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
