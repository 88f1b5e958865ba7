"""Find the devices that a model trains on, and create their probes. The host is always one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import chain
from typing import Any

from memagent.probe import Probe
from memagent.probe.host import HostProbe

_PROBES = {
    "cuda": ("memagent.probe.cuda", "CudaProbe"),
    "xpu": ("memagent.probe.accelerator", "XpuProbe"),
    "mps": ("memagent.probe.accelerator", "MpsProbe"),
}
"""Module and class by kind of device. Only those of devices in use are imported."""
_IS_IN_USE: dict[str, Callable[[Any], bool]] = {
    "cuda": lambda torch: hasattr(torch._C, "_cuda_memoryStats") and torch.cuda.is_initialized(),
    "xpu": lambda torch: hasattr(torch._C, "_xpu_memoryStats") and torch.xpu.is_initialized(),
    "mps": lambda torch: bool(torch.backends.mps.is_available()),
}
"""Checks that this build of torch supports a device and that the process uses it. Fake tensors can
be on devices that don't exist."""


def discover(
    models: Iterable[Any],
    optimizers: Iterable[Any],
    limit_bytes: int | None = None,
    *,
    torch: Any = None,
) -> list[Probe]:
    """Create probes of the GPUs with the parameters, or else of the current GPU, then of the host.

    `limit_bytes` replaces the limit of every GPU, or of the host if there is no GPU. `torch` is the
    imported module, by default the process's own. No device gets initialized.
    """
    torch = torch or sys.modules.get("torch")
    gpus: list[Probe] = []
    if torch is not None:
        devices = [(kind, index) for kind, index in _devices(models, optimizers) if kind in _PROBES]
        for kind, index in devices or _current_gpu(torch):
            if _IS_IN_USE[kind](torch):
                module, name = _PROBES[kind]
                gpus.append(getattr(import_module(module), name)(torch, index, limit_bytes))
    return [*gpus, HostProbe(None if gpus else limit_bytes)]


def _current_gpu(torch: Any) -> list[tuple[str, int]]:
    """Return the current GPU if it has tensors although all parameters are on the host.

    That is the case with offloading (FSDP, ZeRO).
    """
    if not _IS_IN_USE["cuda"](torch):
        return []
    index = int(torch.cuda.current_device())
    allocated = torch._C._cuda_memoryStats(index)["allocated_bytes"]["all"]["current"]
    return [("cuda", index)] if allocated else []


def _devices(models: Iterable[Any], optimizers: Iterable[Any]) -> list[tuple[str, int]]:
    in_models = _parameters(models)
    in_optimizers = (
        parameter
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    )
    devices = {parameter.device for parameter in chain(in_models, in_optimizers)}
    return sorted({(device.type, device.index or 0) for device in devices})


def _parameters(models: Iterable[Any]) -> Iterator[Any]:
    """Yield the models' parameters without `parameters()`, which a script's class may override."""
    visited: set[int] = set()
    queue = list(models)
    for module in queue:  # grows during the loop
        if module is not None and id(module) not in visited:
            visited.add(id(module))
            yield from (item for item in module._parameters.values() if item is not None)
            queue.extend(module._modules.values())
