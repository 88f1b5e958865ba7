"""torch and the devices it can use.

torch is looked at in a process of its own: a broken CUDA library can crash the process that imports it, or hang it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent.doctor.check import DEADLINE_S, Environment, Finding, ok, problem, warning
from memagent.units import format_bytes

OLDEST = (2, 0)
"""What the hooks of optimizers that the agent uses came with."""

_DRIVER = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/dxg"))
_LOOK = """
import importlib.util, json
found = {"installed": importlib.util.find_spec("torch") is not None}
if found["installed"]:
    import torch
    found.update(version=torch.__version__, cuda=torch.version.cuda, hip=getattr(torch.version, "hip", None), devices=[])
    try:
        if found["cuda"] or found["hip"]:
            torch.cuda.init()
            for index in range(torch.cuda.device_count()):
                properties = torch.cuda.get_device_properties(index)
                found["devices"].append([properties.name, properties.total_memory])
    except Exception as error:
        found["error"] = str(error).partition("\\n")[0]
    others = {"mps": getattr(torch.backends, "mps", None), "xpu": getattr(torch, "xpu", None)}
    found["others"] = [name for name, one in others.items() if one is not None and one.is_available()]
print(json.dumps(found))
"""


def check(patient: Environment) -> Iterator[Finding]:
    """Makes a CUDA context for a moment, in the other process."""
    look = [sys.executable, "-W", "ignore", "-c", _LOOK]
    try:
        process = subprocess.run(  # noqa: S603
            look,
            env=dict(patient.environ),
            capture_output=True,
            text=True,
            timeout=0.9 * DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        yield problem(
            "torch did not import in time",
            "a hanging driver or a slow disk: try `python -c 'import torch'`",
        )
        return
    lines = process.stdout.splitlines()
    if process.returncode or not lines:
        said = (process.stderr.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
        yield problem(
            f"torch cannot be imported: {said}",
            "install it anew: https://pytorch.org/get-started/locally/",
        )
        return
    yield from judge(json.loads(lines[-1]), has_driver=has_nvidia_driver(), environ=patient.environ)


def has_nvidia_driver() -> bool:
    return any(path.exists() for path in _DRIVER)


def judge(
    found: Mapping[str, Any], *, has_driver: bool, environ: Mapping[str, str]
) -> Iterator[Finding]:
    """What the other process found, in the light of whether there is an NVIDIA driver on this machine."""
    if not found["installed"]:
        yield warning(
            f"torch is not installed for {sys.executable}",
            "run memagent doctor with the Python that trains: python -m memagent",
        )
        return
    version = str(found["version"])
    if _numbers(version) < OLDEST:
        yield problem(
            f"torch {version} is too old", f"install torch {OLDEST[0]}.{OLDEST[1]} or newer"
        )
    devices, others = found["devices"], found["others"]
    if devices:
        yield ok(
            f"torch {version}, {'ROCm' if found['hip'] else 'CUDA'} {found['hip'] or found['cuda']}"
        )
        for index, (name, total_bytes) in enumerate(devices):
            yield ok(f"GPU {index}: {name}, {format_bytes(total_bytes)}")
    elif others:
        yield ok(f"torch {version}, device {', '.join(others)}")
    elif found["cuda"] or found["hip"]:
        yield _no_device(version, found, has_driver=has_driver, environ=environ)
    elif has_driver:
        yield problem(
            f"torch {version} is a build for the CPU, and this machine has an NVIDIA driver",
            "install a CUDA build: https://pytorch.org/get-started/locally/",
        )
    else:
        yield ok(f"torch {version}, a build for the CPU: host memory is watched")


def _no_device(
    version: str, found: Mapping[str, Any], *, has_driver: bool, environ: Mapping[str, str]
) -> Finding:
    built = f"torch {version} is a build for {'ROCm' if found['hip'] else 'CUDA'}"
    hidden = environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1", "NoDevFiles"):
        return warning(
            f"{built}, and CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU",
            "unset it to train on a GPU",
        )
    if not has_driver or found["hip"]:
        return warning(
            f"{built}, and no driver is to be seen",
            "install the driver; in a container start it with the GPUs (docker run --gpus all)",
        )
    said = found.get("error", "no device found")
    return problem(
        f"{built}, and it finds no GPU: {said}",
        "see `nvidia-smi`: the driver may be too old for this build",
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("+")[0].split(".")[:2] if part.isdigit())
