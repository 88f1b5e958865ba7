"""Cases, what they build, and the one training loop that all truths and estimators share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

STEPS = 2
"""The first step creates the optimizer's state, the second is steady."""

RECORDED_RUNS = ("measured", "undisturbed", "limited", "read")
"""What `record` does with a case, each in a process of its own."""

PHASES = ("data", "forward", "backward", "optimizer")


@dataclass(frozen=True)
class Case:
    """Description of one training. `size` is "small" (a step takes less than a second on a CPU
    core) or "large" (for a GPU).
    """

    name: str
    family: str
    optimizer: str = "adamw"
    autocast: Literal["bfloat16", "float16"] | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    checkpointing: Literal["none", "reentrant", "non_reentrant"] = "none"
    attention: Literal["sdpa", "eager"] = "sdpa"
    accumulation: int = 1
    lora: bool = False
    holds_output: bool = True
    """The loop's variable keeps the model's output through backward, as in most scripts but not in
    `transformers.Trainer`.
    """
    size: Literal["small", "large"] = "small"
    scaler: bool = False
    clip_norm: float | None = None
    parallel: Literal["none", "ddp", "ddp_views", "fsdp2"] = "none"
    """One rank of `ranks.RANKS`."""
    batch: int | None = None
    """Rows of a batch, where they aren't the family's."""
    channels_last: bool = False
    cudnn_benchmark: bool = False
    """Whether cuDNN tries its algorithms and takes the fastest."""
    allocator: str | None = None
    """Settings of torch's allocator, as in PYTORCH_CUDA_ALLOC_CONF."""
    compiled: bool = False
    """Whether `torch.compile` makes the kernels. The trace runs the uncompiled program."""


@dataclass(frozen=True)
class Where:
    """Target: "cpu" or "cuda", with the bytes of the device and of the context if they are known.

    The capability decides about the workspaces of cuBLAS, and the version of torch about those of
    cuBLASLt, if it isn't the installed one.
    """

    kind: str
    total_bytes: int | None = None
    context_bytes: int | None = None
    capability: tuple[int, int] | None = None
    torch_version: str | None = None


@dataclass
class Workload:
    """A built case. `batch` makes new keyword arguments of the model and targets; `loss` takes the
    output and the targets.
    """

    case: Case
    model: nn.Module
    batch: Callable[[], tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]
    loss: Callable[[Any, Mapping[str, torch.Tensor]], torch.Tensor]
    optimizer: torch.optim.Optimizer
    device: str = "cpu"
    scaler: torch.amp.GradScaler | None = None

    def autocast(self) -> AbstractContextManager[Any]:
        if self.case.autocast is None:
            return nullcontext()
        return torch.autocast(self.device, dtype=getattr(torch, self.case.autocast))


def train_step(workload: Workload, enter: Callable[[str], None] = lambda _: None) -> None:
    """Run one optimizer step; `enter` is called at the start of each phase. Only the training's
    state remains between two steps.
    """
    for _ in range(workload.case.accumulation):
        _forward_backward(workload, enter)
    enter("optimizer")
    _update(workload)
    workload.optimizer.zero_grad(set_to_none=True)


def _update(workload: Workload) -> None:
    optimizer, scaler, clip_norm = workload.optimizer, workload.scaler, workload.case.clip_norm
    if clip_norm is not None:
        if scaler is not None:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(workload.model.parameters(), clip_norm)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()


def _forward_backward(workload: Workload, enter: Callable[[str], None]) -> None:
    enter("data")
    inputs, targets = workload.batch()
    enter("forward")
    with workload.autocast():
        output = workload.model(**inputs)
        loss = workload.loss(output, targets)
    if not workload.case.holds_output:
        del output
    if workload.case.accumulation > 1:
        loss = loss / workload.case.accumulation
    enter("backward")
    torch.autograd.backward(loss if workload.scaler is None else workload.scaler.scale(loss))
