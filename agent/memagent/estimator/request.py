"""Requests for estimates, as plain data: a step by its model's shape, or a step to trace.

A change of the training is a changed request. `engine.estimate` answers either kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from memagent.errors import EstimateError
from memagent.estimator import input_specs
from memagent.estimator.formula.spec import Loop, TrainingSpec


@dataclass(frozen=True)
class FormulaRequest:
    """A training step by its model's shape; `limit_bytes` defaults to the GPU's memory.

    `untraced` is why it is not traced, "" if a trace was not asked for. `remarks` are sentences for
    the first line: what was chosen because nothing said it, and what the card lacks.
    """

    spec: TrainingSpec
    limit_bytes: int | None = None
    context_bytes: int | None = None
    untraced: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def batch(self) -> int:
        return self.spec.batch

    @property
    def sequence(self) -> int | None:
        return self.spec.sequence

    def resized(self, batch: int, sequence: int | None) -> FormulaRequest:
        """Return the request for another batch and sequence.

        Raises EstimateError for a sequence that the model doesn't take.
        """
        resized = replace(self, spec=replace(self.spec, batch=batch, sequence=sequence))
        resized.spec.check_positions()
        return resized


@dataclass(frozen=True)
class TraceRequest:
    """A training step of the user's own objects and the device it is meant for.

    See `memagent.estimate` for the arguments. `allocator` is text as in PYTORCH_CUDA_ALLOC_CONF,
    `sequence` the tokens a sample if the inputs were made for that length. `timeout_s` is processor
    time; `fallback` is the same step by its model's shape, for a step that cannot be traced.
    `remarks` as in `FormulaRequest`.
    """

    model: Any
    inputs: Any
    targets: Any = None
    optimizer: Any = "adamw"
    loss: Callable[..., Any] | None = None
    autocast: Literal["bf16", "fp16"] | None = None
    checkpointing: Literal["full"] | None = None
    accumulation: int = 1
    loop: Loop = "step"
    scaler: bool = False
    set_to_none: bool = True
    sequence: int | None = None
    device: str = "cuda"
    allocator: str = ""
    limit_bytes: int | None = None
    workspace_bytes: int = 0
    context_bytes: int = 0
    context_interval: tuple[int, int] | None = None
    timeout_s: float = 60.0
    fallback: FormulaRequest | None = None
    remarks: tuple[str, ...] = ()

    @property
    def batch(self) -> int:
        """Return the samples of one forward. Raises EstimateError if the inputs hold no tensor."""
        return input_specs.batch_of(self.inputs)

    def resized(self, batch: int, sequence: int | None) -> TraceRequest:
        """Return the request for another batch. Raises EstimateError for another sequence."""
        if sequence != self.sequence:
            raise EstimateError(
                "the inputs do not say which dimension is the sequence: change it in --input"
            )
        current = self.batch
        if batch == current:
            return self
        fallback = None if self.fallback is None else self.fallback.resized(batch, sequence)
        return replace(
            self,
            fallback=fallback,
            inputs=input_specs.with_batch(self.inputs, batch, instead_of=current),
            targets=input_specs.with_batch(self.targets, batch, instead_of=current),
        )


EstimateRequest = FormulaRequest | TraceRequest
