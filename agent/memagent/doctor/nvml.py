"""NVML: what the device itself says of its memory, other processes included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memagent.doctor.check import Environment, Finding, ok, problem, warning
from memagent.doctor.device import has_nvidia_driver
from memagent.probe.nvml import init_nvml
from memagent.probe.nvml_device import NvmlUnavailableError
from memagent.units import format_bytes


def check(_patient: Environment) -> Iterator[Finding]:
    try:
        library = init_nvml()
    except NvmlUnavailableError as reason:
        yield judge_missing(str(reason), has_driver=has_nvidia_driver())
        return
    try:
        yield from _look(library)
    finally:
        library.nvmlShutdown()


def judge_missing(reason: str, *, has_driver: bool) -> Finding:
    """Without a driver nothing is missed, unless the installed binding is wrong on any machine."""
    if "install" in reason:
        return problem("the NVML binding is missing or the wrong one", reason)
    if has_driver:
        return warning(
            f"no NVML: {reason}",
            "the GPU's own figures and other processes' memory are unknown till then",
        )
    return ok("no NVIDIA driver here: nothing to read from NVML")


def _look(library: Any) -> Iterator[Finding]:
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
    text = f"NVML, GPU {index}: {name}, {format_bytes(memory.used)} of {format_bytes(memory.total)} in use"
    return ok(
        f"{text}; sliced (MIG): limits are those of the slice"
        if _is_sliced(library, handle)
        else text
    )


def _is_sliced(library: Any, handle: Any) -> bool:
    try:
        return bool(library.nvmlDeviceGetMigMode(handle)[0])
    except library.NVMLError:  # most cards know no slices
        return False


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
