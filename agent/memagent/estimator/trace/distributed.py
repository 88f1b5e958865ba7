"""Models that are spread over ranks: what one rank allocates.

- DDP: its reducer holds the real parameters in C++, so the module inside is traced, beside buckets of the gradients' size (unless the
  gradients are views of the buckets, where they take the gradients' place).
- FSDP2 and other DTensors: a sharded model can not be made fake, its hooks hold the shards. One that a callable builds is built
  on fake tensors from the start, on a fake process group; all-gathers and reduce-scatters then show as the allocations they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memagent.errors import TraceError
from memagent.estimator.trace.recorder import StorageRecorder

BUCKET_BYTES = 25 << 20
"""torch's default `bucket_cap_mb`; buckets only matter by their sum."""


def is_sharded(model: torch.nn.Module) -> bool:
    """Whether a parameter of the model is a DTensor."""
    return any(type(parameter).__name__ == "DTensor" or _holds_dtensor(parameter) for parameter in model.parameters())


def _holds_dtensor(parameter: torch.Tensor) -> bool:
    return type(parameter.data).__name__ == "DTensor"


def built_on_fakes(
    factory: Callable[[], torch.nn.Module] | torch.nn.Module, mode: FakeTensorMode, device: torch.device
) -> torch.nn.Module:
    """The sharded model, made of fake tensors from the start."""
    if isinstance(factory, torch.nn.Module):
        raise TraceError(
            "a sharded model (FSDP2, DTensor) can't be traced once it is built: pass a callable that builds it on a fake "
            "process group (torch.testing._internal.distributed.fake_pg), with the device mesh made outside of it"
        )
    with mode, torch.device(device):
        return factory()


def unwrapped(model: torch.nn.Module) -> tuple[torch.nn.Module, bool]:
    """The module that DDP wraps, and whether DDP keeps buckets beside the gradients."""
    if type(model).__name__ != "DistributedDataParallel":
        return model, False
    return model.module, not getattr(model, "gradient_as_bucket_view", False)  # type: ignore[return-value]


def buckets(recorder: StorageRecorder, model: torch.nn.Module) -> list[Any]:
    """DDP's buckets, as allocations that stay. The caller keeps them alive."""
    made: list[torch.Tensor] = []
    sizes: dict[tuple[torch.dtype, torch.device], int] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            key = (parameter.dtype, parameter.device)
            sizes[key] = sizes.get(key, 0) + parameter.numel()
    for (dtype, device), total in sizes.items():
        room = max(1, BUCKET_BYTES // dtype.itemsize)
        for start in range(0, total, room):
            bucket = torch.empty(min(room, total - start), dtype=dtype, device=device)
            recorder.mark(bucket, "gradients", "DistributedDataParallel")
            made.append(bucket)
    return made
