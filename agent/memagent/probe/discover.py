"""Which devices a model trains on, and the probes for them. The host is always one of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from memagent.probe import Probe
from memagent.probe.accelerator import MpsProbe, XpuProbe
from memagent.probe.cuda import CudaProbe
from memagent.probe.host import HostProbe


def discover(
    models: Iterable[Any],
    optimizers: Iterable[Any],
    limit_bytes: int | None = None,
    *,
    torch: Any = None,
) -> list[Probe]:
    """Probes of the devices that hold the parameters, or else of the GPU that computes with them; GPUs first, then the host.

    `limit_bytes` replaces the limit of the device that the model trains on: of every GPU, or of the host where there is none.
    `torch` is the imported module, by default the process's own. No device is initialised.
    """
    torch = torch or sys.modules.get("torch")
    gpus: list[Probe] = []
    if torch is not None:
        found = [(kind, index) for kind, index in _devices(models, optimizers) if kind in _PROBES]
        for kind, index in found or _where_it_computes(torch):
            if _IN_USE[kind](torch):
                gpus.append(_PROBES[kind](torch, index, limit_bytes))
    return [*gpus, HostProbe(None if gpus else limit_bytes)]


_PROBES: dict[str, Callable[[Any, int, int | None], Probe]] = {
    "cuda": CudaProbe,
    "xpu": XpuProbe,
    "mps": MpsProbe,
}
_IN_USE: dict[str, Callable[[Any], bool]] = {
    "cuda": lambda torch: hasattr(torch._C, "_cuda_memoryStats") and torch.cuda.is_initialized(),
    "xpu": lambda torch: hasattr(torch._C, "_xpu_memoryStats") and torch.xpu.is_initialized(),
    "mps": lambda torch: bool(torch.backends.mps.is_available()),
}
"""Whether this build of torch knows the device and the process uses it already; fake tensors have devices that nobody does."""


def _where_it_computes(torch: Any) -> list[tuple[str, int]]:
    """The current GPU of a process whose parameters all lie on the host, but whose tensors don't: they are offloaded (FSDP, ZeRO)."""
    if not _IN_USE["cuda"](torch):
        return []
    index = int(torch.cuda.current_device())
    held = torch._C._cuda_memoryStats(index)["allocated_bytes"]["all"]["current"]
    return [("cuda", index)] if held else []


def _devices(models: Iterable[Any], optimizers: Iterable[Any]) -> list[tuple[str, int]]:
    in_models = (parameter for model in models for parameter in model.parameters())
    in_optimizers = (
        parameter
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    )
    devices = {parameter.device for parameter in chain(in_models, in_optimizers)}
    return sorted({(device.type, device.index or 0) for device in devices})
