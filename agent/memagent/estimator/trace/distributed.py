"""Models distributed over ranks: the allocations of one rank.

- DDP: its reducer holds the real parameters in C++. The tracer traces the module inside, and adds
  buckets of the gradients' size that stay allocated. If gradients are views of the buckets, the
  buckets replace the gradients.
- FSDP2 and other DTensors: a sharded model can't be converted, because its hooks hold the shards.
  If a callable builds the model, it builds it from fake tensors, on a fake process group.
  All-gathers and reduce-scatters then show as the allocations that they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memagent.errors import TraceError
from memagent.estimator.trace.recorder import StorageRecorder

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20
"""torch's `_DEFAULT_FIRST_BUCKET_BYTES` and default `bucket_cap_mb`, at which a bucket is full."""

Reduction = Literal["none", "buckets", "views"]
"""DDP's copy of the gradients: none (no DDP), buckets, or buckets that replace the gradients."""


def is_sharded(model: torch.nn.Module) -> bool:
    """Return whether a parameter of the model is a DTensor."""
    return any(
        "DTensor" in (type(parameter).__name__, type(parameter.data).__name__)
        for parameter in model.parameters()
    )


def build_sharded(
    factory: Callable[[], torch.nn.Module] | torch.nn.Module,
    mode: FakeTensorMode,
    device: torch.device,
) -> torch.nn.Module:
    """Build the sharded model from fake tensors."""
    if isinstance(factory, torch.nn.Module):
        raise TraceError(
            "a sharded model (FSDP2, DTensor) can't be traced once it is built: pass a callable "
            "that builds it on a fake process group (torch.testing._internal.distributed.fake_pg), "
            "with the device mesh made outside of it"
        )
    with mode, torch.device(device):
        return factory()


def unwrap_ddp(model: torch.nn.Module) -> tuple[torch.nn.Module, Reduction]:
    """Return the module inside DDP, and how DDP stores the gradients."""
    if type(model).__name__ != "DistributedDataParallel":
        return model, "none"
    views = getattr(model, "gradient_as_bucket_view", False)
    return model.module, "views" if views else "buckets"  # type: ignore[return-value]


def allocate_buckets(
    recorder: StorageRecorder, model: torch.nn.Module, reduction: Reduction
) -> list[torch.Tensor]:
    """Allocate DDP's buckets; the caller keeps them alive.

    With "views", each new gradient is copied into its bucket, whose part replaces the gradient
    (torch/csrc/distributed/c10d/reducer.cpp, `mark_variable_ready_dense`).
    """
    buckets: list[torch.Tensor] = []
    for parameters in _assign_to_buckets(model) if reduction != "none" else ():
        first = parameters[0]
        length = sum(map(torch.numel, parameters))
        bucket = torch.empty(length, dtype=first.dtype, device=first.device)
        recorder.assign_component(bucket, "gradients", "DistributedDataParallel")
        buckets.append(bucket)
        if reduction == "views":
            parts = torch.split(bucket, [parameter.numel() for parameter in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.register_post_accumulate_grad_hook(_ReplaceGradient(part))  # type: ignore[no-untyped-call]
    return buckets


def _assign_to_buckets(model: torch.nn.Module) -> Iterator[list[torch.nn.Parameter]]:
    """Yield the trained parameters of each bucket, from last to first, by dtype and device."""
    groups: dict[tuple[torch.dtype, torch.device], list[torch.nn.Parameter]] = {}
    # gradients arrive from the last layer to the first
    for parameter in reversed([item for item in model.parameters() if item.requires_grad]):
        groups.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    for parameters in groups.values():
        limit, size, bucket = FIRST_BUCKET_BYTES, 0, list[torch.nn.Parameter]()
        for parameter in parameters:
            bucket.append(parameter)
            size += parameter.numel() * parameter.element_size()
            # only the first bucket is small, so that the reduction starts early
            if size >= limit:
                yield bucket
                limit, size, bucket = BUCKET_BYTES, 0, []
        if bucket:
            yield bucket


class _ReplaceGradient:
    """A hook that replaces a new gradient with a part of a bucket."""

    def __init__(self, part: torch.Tensor) -> None:
        self._part = part

    def __call__(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            parameter.grad = self._part.view(parameter.shape)
