"""Models that are spread over ranks: what one rank allocates.

- DDP: its reducer holds the real parameters in C++, so the module inside is traced, beside buckets of the gradients' size, which stay.
  Where gradients are views of the buckets, these take the gradients' place.
- FSDP2 and other DTensors: a sharded model can not be made fake, its hooks hold the shards. One that a callable builds is built
  on fake tensors from the start, on a fake process group; all-gathers and reduce-scatters then show as the allocations they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memagent.errors import TraceError
from memagent.estimator.trace.recorder import StorageRecorder

FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
"""torch's `_DEFAULT_FIRST_BUCKET_BYTES` and default `bucket_cap_mb`: a bucket is closed when it has reached that."""


Reduction = Literal["none", "buckets", "views"]
"""What DDP keeps of the gradients: nothing (no DDP), a copy in buckets, or the buckets in the gradients' place."""


def is_sharded(model: torch.nn.Module) -> bool:
    """Whether a parameter of the model is a DTensor."""
    return any(
        type(parameter).__name__ == "DTensor" or _holds_dtensor(parameter)
        for parameter in model.parameters()
    )


def _holds_dtensor(parameter: torch.Tensor) -> bool:
    return type(parameter.data).__name__ == "DTensor"


def built_on_fakes(
    factory: Callable[[], torch.nn.Module] | torch.nn.Module,
    mode: FakeTensorMode,
    device: torch.device,
) -> torch.nn.Module:
    """The sharded model, made of fake tensors from the start."""
    if isinstance(factory, torch.nn.Module):
        raise TraceError(
            "a sharded model (FSDP2, DTensor) can't be traced once it is built: pass a callable that builds it on a fake "
            "process group (torch.testing._internal.distributed.fake_pg), with the device mesh made outside of it"
        )
    with mode, torch.device(device):
        return factory()


def unwrapped(model: torch.nn.Module) -> tuple[torch.nn.Module, Reduction]:
    """The module that DDP wraps, and what DDP does with the gradients."""
    if type(model).__name__ != "DistributedDataParallel":
        return model, "none"
    return model.module, "views" if getattr(model, "gradient_as_bucket_view", False) else "buckets"  # type: ignore[return-value]


def buckets(
    recorder: StorageRecorder, model: torch.nn.Module, reduction: Reduction
) -> list[torch.Tensor]:
    """DDP's buckets, as allocations that stay; the caller keeps them alive. With "views", each gradient is copied into its bucket as soon
    as it is there, and the bucket's part takes its place (torch/csrc/distributed/c10d/reducer.cpp, `mark_variable_ready_dense`)."""
    made: list[torch.Tensor] = []
    for members in _assigned(model) if reduction != "none" else ():
        bucket = torch.empty(
            sum(map(torch.numel, members)), dtype=members[0].dtype, device=members[0].device
        )
        recorder.mark(bucket, "gradients", "DistributedDataParallel")
        made.append(bucket)
        if reduction == "views":
            parts = torch.split(bucket, [one.numel() for one in members])
            for parameter, part in zip(members, parts, strict=True):
                parameter.register_post_accumulate_grad_hook(_TakesPlace(part))  # type: ignore[no-untyped-call]
    return made


def _assigned(model: torch.nn.Module) -> Iterator[list[torch.nn.Parameter]]:
    """Trained parameters from the last to the first, by dtype, in buckets of their sizes."""
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.nn.Parameter]] = {}
    for parameter in reversed(
        [parameter for parameter in model.parameters() if parameter.requires_grad]
    ):
        kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    for members in kinds.values():
        limit, bucket = FIRST_BUCKET_BYTES, list[torch.nn.Parameter]()
        for parameter in members:
            bucket.append(parameter)
            if sum(one.numel() * one.element_size() for one in bucket) >= limit:
                yield bucket
                limit, bucket = BUCKET_BYTES, []
        if bucket:
            yield bucket


class _TakesPlace:
    """Puts a part of a bucket where a new gradient is."""

    def __init__(self, part: torch.Tensor) -> None:
        self._part = part

    def __call__(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            parameter.grad = self._part.view(parameter.shape)
