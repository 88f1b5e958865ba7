"""Which devices a model trains on, and the probes for them. The host is always one of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import chain
from typing import Any

from memagent.probe import Probe
from memagent.probe.cuda import CudaProbe
from memagent.probe.host import HostProbe


def discover(models: Iterable[Any], optimizers: Iterable[Any], limit_bytes: int | None = None) -> list[Probe]:
    """Probes of the devices that hold the parameters, GPUs first, then the host.

    `limit_bytes` replaces the limit of the device that the model trains on: of every GPU, or of the host where there is none.
    """
    torch = sys.modules.get("torch")
    gpus: list[CudaProbe] = []
    if torch is not None and hasattr(torch._C, "_cuda_memoryStats") and torch.cuda.is_initialized():
        gpus = [CudaProbe(torch, index, limit_bytes) for index in _cuda_indexes(models, optimizers)]
    return [*gpus, HostProbe(None if gpus else limit_bytes)]


def _cuda_indexes(models: Iterable[Any], optimizers: Iterable[Any]) -> list[int]:
    in_models = (parameter for model in models for parameter in model.parameters())
    in_optimizers = (
        parameter for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]
    )
    devices = {parameter.device for parameter in chain(in_models, in_optimizers)}
    return sorted(device.index for device in devices if device.type == "cuda")
