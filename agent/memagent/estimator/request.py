"""What is asked of the tracing estimator, as a value: a change of the training is a changed question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from memagent.estimator.allocator import AllocatorConfig
from memagent.estimator.estimate import Estimate
from memagent.estimator.from_trace import estimate_of
from memagent.estimator.trace import MemoryEvent, Trace, record_trace

Change = Callable[[MemoryEvent], MemoryEvent | None]
"""What becomes of an event under a change that is not traced anew; None drops it. Applied to births and deaths alike."""


@dataclass(frozen=True)
class EstimateRequest:
    """One training step and the device it is meant for; see `memagent.estimate`. `allocator` is text as in PYTORCH_CUDA_ALLOC_CONF."""

    model: Any
    inputs: Any
    targets: Any = None
    optimizer: Any = "adamw"
    loss: Callable[..., Any] | None = None
    autocast: Literal["bf16", "fp16"] | None = None
    checkpointing: Literal["full"] | None = None
    accumulate: int = 1
    scaler: bool = False
    set_to_none: bool = True
    device: str = "cuda"
    allocator: str = ""
    limit_bytes: int | None = None
    workspace_bytes: int = 0
    context_bytes: int = 0
    context_interval: tuple[int, int] | None = None
    timeout_s: float = 60.0

    def trace(self) -> Trace:
        """Raises TraceError for a step that cannot be traced."""
        return record_trace(
            Checkpointed(self.model) if self.checkpointing == "full" else self.model,
            self.inputs,
            targets=self.targets,
            optimizer=self.optimizer,
            loss=self.loss,
            autocast=self.autocast,
            scaler=self.scaler,
            accumulate=self.accumulate,
            set_to_none=self.set_to_none,
            device=self.device,
            timeout_s=self.timeout_s,
        )

    def estimate(self, trace: Trace, change: Change | None = None) -> Estimate:
        """The answer for a trace of this question, or for what `change` makes of it."""
        if change is not None:
            trace = replace(
                trace, events=tuple(new for old in trace.events if (new := change(old)) is not None)
            )
        return estimate_of(
            trace,
            allocator=AllocatorConfig.parse(self.allocator, trace.torch_version or None),
            limit_bytes=self.limit_bytes,
            workspace_bytes=self.workspace_bytes,
            context_bytes=self.context_bytes,
            context_interval=self.context_interval,
            assumptions={
                "autocast": self.autocast or "none",
                "checkpointing": self.checkpointing or "none",
                "accumulation": self.accumulate,
                "allocator": self.allocator or "default",
            },
        )


class Checkpointed:
    """Makes the model with every repeated block recomputed in backward. Called in the tracing process; the caller's stays as it is."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self) -> Any:
        from memagent.estimator.trace.session import build_model

        model = build_model(self._model)
        enable = getattr(
            model, "activation_checkpointing_enable", None
        )  # transformers, as it is called from 5.23 on
        enable = enable or getattr(model, "gradient_checkpointing_enable", None)
        if enable is not None:
            enable({"use_reentrant": False})
        else:
            for block in repeated_blocks(model):
                block.forward = _recomputed(block.forward)
        return model


def repeated_blocks(model: Any) -> list[Any]:
    """The children of the outermost lists and sequences of modules that hold the same class with parameters at least twice."""
    found: list[Any] = []
    inside: set[int] = set()
    for module in model.modules():
        if id(module) in inside or type(module).__name__ not in ("ModuleList", "Sequential"):
            continue
        kinds = [type(child) for child in module.children()]
        blocks = [
            child
            for child in module.children()
            if kinds.count(type(child)) > 1
            and any(True for _ in child.children())
            and any(True for _ in child.parameters())
        ]
        found += blocks
        inside.update(id(part) for block in blocks for part in block.modules())
    return found


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **keywords: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        return checkpoint(forward, *arguments, use_reentrant=False, **keywords)

    return run
