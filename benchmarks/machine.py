"""The machine on which figures were measured."""

from __future__ import annotations

import platform
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


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
