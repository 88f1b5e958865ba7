"""torch and the devices it can use.

torch is imported in a child process: a broken CUDA library can crash or hang the importing process.
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

MIN_TORCH = (2, 0)
"""First version with the optimizer hooks that the agent uses."""

_DRIVER = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/dxg"))
_PROBE_SCRIPT = """
import importlib.util, json
result = {"installed": importlib.util.find_spec("torch") is not None}
if result["installed"]:
    import torch
    result.update(version=torch.__version__, cuda=torch.version.cuda, devices=[])
    result["hip"] = getattr(torch.version, "hip", None)
    try:
        if result["cuda"] or result["hip"]:
            torch.cuda.init()
            for index in range(torch.cuda.device_count()):
                properties = torch.cuda.get_device_properties(index)
                result["devices"].append([properties.name, properties.total_memory])
    except Exception as error:
        result["error"] = str(error).partition("\\n")[0]
    others = {"mps": getattr(torch.backends, "mps", None), "xpu": getattr(torch, "xpu", None)}
    result["others"] = [name for name, api in others.items() if api and api.is_available()]
print(json.dumps(result))
"""


def check(environment: Environment) -> Iterator[Finding]:
    """Probe torch in a child process, which creates a CUDA context for a moment."""
    command = [sys.executable, "-W", "ignore", "-c", _PROBE_SCRIPT]
    try:
        process = subprocess.run(  # noqa: S603
            command,
            env=dict(environment.environ),
            capture_output=True,
            text=True,
            timeout=0.9 * DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        yield problem(
            "importing torch timed out",
            "the driver may hang or the disk be slow: try `python -c 'import torch'`",
        )
        return
    lines = process.stdout.splitlines()
    if process.returncode or not lines:
        error = (process.stderr.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
        yield problem(
            f"torch cannot be imported: {error}",
            "reinstall it: https://pytorch.org/get-started/locally/",
        )
        return
    yield from judge(
        json.loads(lines[-1]), has_driver=has_nvidia_driver(), environ=environment.environ
    )


def has_nvidia_driver() -> bool:
    return any(path.exists() for path in _DRIVER)


def judge(
    result: Mapping[str, Any], *, has_driver: bool, environ: Mapping[str, str]
) -> Iterator[Finding]:
    """Judge the result of the probe; `has_driver`: this machine has an NVIDIA driver."""
    if not result["installed"]:
        yield warning(
            f"torch is not installed for {sys.executable}",
            "run it with the Python that you train with: python -m memagent doctor",
        )
        return
    version = str(result["version"])
    if _numbers(version) < MIN_TORCH:
        yield problem(
            f"torch {version} is too old", f"install torch {MIN_TORCH[0]}.{MIN_TORCH[1]} or newer"
        )
    devices, others = result["devices"], result["others"]
    if devices:
        api = f"ROCm {result['hip']}" if result["hip"] else f"CUDA {result['cuda']}"
        yield ok(f"torch {version}, {api}")
        for index, (name, total_bytes) in enumerate(devices):
            yield ok(f"GPU {index}: {name}, {format_bytes(total_bytes)}")
    elif others:
        yield ok(f"torch {version}, device {', '.join(others)}")
    elif result["cuda"] or result["hip"]:
        yield _no_device(version, result, has_driver=has_driver, environ=environ)
    elif has_driver:
        yield problem(
            f"torch {version} is a build for the CPU, and this machine has an NVIDIA driver",
            "install a CUDA build: https://pytorch.org/get-started/locally/",
        )
    else:
        yield ok(f"torch {version}, a build for the CPU: host memory is monitored")


def _no_device(
    version: str, result: Mapping[str, Any], *, has_driver: bool, environ: Mapping[str, str]
) -> Finding:
    built = f"torch {version} is a build for {'ROCm' if result['hip'] else 'CUDA'}"
    hidden = environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1", "NoDevFiles"):
        return warning(
            f"{built}, and CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU",
            "unset it to train on a GPU",
        )
    if not has_driver or result["hip"]:
        return warning(
            f"{built}, and no driver was found",
            "install the driver; start a container with GPU access (docker run --gpus all)",
        )
    reason = result.get("error", "no device found")
    return problem(
        f"{built}, and it finds no GPU: {reason}",
        "see `nvidia-smi`: the driver may be too old for this build",
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("+")[0].split(".")[:2] if part.isdigit())
