"""NVML: memory in use on each device, by all processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memagent.doctor.check import Environment, Finding, ok, problem, warning
from memagent.doctor.device import has_nvidia_driver
from memagent.probe.nvml import init_nvml
from memagent.probe.nvml_device import NvmlUnavailableError
from memagent.units import format_bytes


def check(_environment: Environment) -> Iterator[Finding]:
    try:
        library = init_nvml()
    except NvmlUnavailableError as reason:
        yield judge_missing(str(reason), has_driver=has_nvidia_driver())
        return
    try:
        yield from _describe_devices(library)
    finally:
        library.nvmlShutdown()


def judge_missing(reason: str, *, has_driver: bool) -> Finding:
    """Judge why NVML is unavailable: without a driver that's fine, unless the binding is wrong."""
    if "install" in reason:
        return problem("the NVML binding is missing or the wrong one", reason)
    if has_driver:
        return warning(
            f"no NVML: {reason}",
            "usage of the whole GPU and of other processes is unknown without it",
        )
    return ok("no NVIDIA driver: NVML is not used")


def _describe_devices(library: Any) -> Iterator[Finding]:
    yield ok(f"NVML, driver {_text(library.nvmlSystemGetDriverVersion())}")
    for index in range(library.nvmlDeviceGetCount()):
        try:
            yield _device(library, index)
        except library.NVMLError as error:
            yield warning(
                f"NVML, GPU {index}: {error}", "give this user or container access to the device"
            )


def _device(library: Any, index: int) -> Finding:
    handle = library.nvmlDeviceGetHandleByIndex(index)
    name, memory = _text(library.nvmlDeviceGetName(handle)), library.nvmlDeviceGetMemoryInfo(handle)
    used, total = format_bytes(memory.used), format_bytes(memory.total)
    text = f"NVML, GPU {index}: {name}, {used} of {total} in use"
    return ok(f"{text}; MIG: limits are those of the slice" if _is_mig(library, handle) else text)


def _is_mig(library: Any, handle: Any) -> bool:
    try:
        return bool(library.nvmlDeviceGetMigMode(handle)[0])
    except library.NVMLError:  # most cards do not support MIG
        return False


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
