"""What would save memory in this very step: each change is applied and the step estimated anew; nothing is a rule of thumb.

Changes that alter the program (precision, checkpointing, a fused optimizer, half the batch) are traced anew. Those that alter only where
bytes lie or how many they are (8-bit state, sharding, offload, the allocator's settings) are applied to the events of the first trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from memagent.errors import EstimateError
from memagent.estimator.estimate import Estimate
from memagent.estimator.question import Question
from memagent.estimator.trace import MemoryEvent, Trace, TraceError
from memagent.wire.messages import AdviceItem

LEAST_SHARE = 0.01
"""Of the peak; what saves less is not worth a line."""
RANKS = 8
_EIGHT_BIT = (2 + 2 * 4 / 256) / 8
"""Two 8-bit states and two fp32 scales a block of 256, over two fp32 states (bitsandbytes/optim/optimizer.py)."""


@dataclass(frozen=True)
class Idea:
    """A change, what it usually costs in speed, and the code that makes it. `answer` estimates the step with the change applied."""

    change: str
    cost: str
    code: str
    answer: Callable[[], Estimate]


def advise(question: Question, trace: Trace, found: Estimate) -> Estimate:
    """`found` with its advice: changes ranked by what they save of the bytes that the limit is compared with."""
    items = []
    for idea in _ideas(question, trace, found):
        try:
            saving = found.needed_bytes - idea.answer().needed_bytes
        except (TraceError, EstimateError):
            continue  # the step cannot be run that way
        if saving >= LEAST_SHARE * found.needed_bytes:
            items.append(AdviceItem(change=idea.change, saving_bytes=saving, cost=idea.cost, code=idea.code))
    return replace(found, advice=tuple(sorted(items, key=lambda item: -item.saving_bytes)))


def _ideas(question: Question, trace: Trace, found: Estimate) -> Iterator[Idea]:
    def traced(**changes: Any) -> Callable[[], Estimate]:
        changed = replace(question, **changes)
        return lambda: changed.estimate(changed.trace())

    def changed(change: Callable[[MemoryEvent], MemoryEvent | None]) -> Callable[[], Estimate]:
        return lambda: question.estimate(trace, change)

    if question.autocast is None and question.device == "cuda":
        yield Idea(
            "compute in bf16 (autocast)",
            "faster on Ampere and newer",
            'with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = model(**batch).loss',
            traced(autocast="bf16"),
        )
    if question.checkpointing is None:
        yield Idea(
            "recompute activations (gradient checkpointing)",
            "about a third more compute",
            "model.gradient_checkpointing_enable()  # or torch.utils.checkpoint around each block",
            traced(checkpointing="full"),
        )
    fused = _fused(question.optimizer)
    if fused is not None and question.device == "cuda":
        yield Idea(
            "fused optimizer instead of foreach",
            "none, usually faster",
            f"torch.optim.{trace.optimizer}(model.parameters(), lr=lr, fused=True)",
            traced(optimizer=fused),
        )
    if found.components.get("optimizer_state"):
        yield from _about_state(trace, changed)
    yield Idea(
        "half the batch, accumulated over two",
        "a little slower, the same gradients",
        "for part in batch.chunk(2):\n    (loss_of(part) / 2).backward()\noptimizer.step()",
        lambda: _with_half_the_batch(question),
    )
    if question.device == "cuda" and "expandable_segments:True" not in question.allocator:
        settings = ",".join(part for part in (question.allocator, "expandable_segments:True") if part)
        yield Idea(
            "expandable segments in the allocator",
            "none",
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            lambda: replace(question, allocator=settings).estimate(trace),
        )
    yield Idea(
        f"shard over {RANKS} GPUs (FSDP, ZeRO-3)",
        "communication in forward and backward",
        "from torch.distributed.fsdp import fully_shard\nfor block in model.blocks:\n    fully_shard(block)\nfully_shard(model)",
        changed(_scaled({"parameters", "gradients", "optimizer_state"}, 1 / RANKS)),
    )


def _with_half_the_batch(question: Question) -> Estimate:
    inputs, targets = halved(question.inputs), halved(question.targets)
    smaller = replace(question, inputs=inputs, targets=targets, accumulate=2 * question.accumulate)
    return smaller.estimate(smaller.trace())


def _about_state(trace: Trace, changed: Callable[..., Callable[[], Estimate]]) -> Iterator[Idea]:
    if "8bit" not in trace.optimizer:
        yield Idea(
            "8-bit optimizer state",
            "none to speak of",
            "optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=lr)",
            changed(_scaled({"optimizer_state"}, _EIGHT_BIT, without_temporaries=True)),
        )
    yield Idea(
        "optimizer state in host memory",
        "a slower optimizer step, by the PCIe bus",
        "deepspeed: zero_optimization.offload_optimizer.device = cpu  # or bitsandbytes.optim.PagedAdamW",
        changed(_scaled({"optimizer_state"}, 0.0, without_temporaries=True)),
    )


def _scaled(
    components: set[str], factor: float, *, without_temporaries: bool = False
) -> Callable[[MemoryEvent], MemoryEvent | None]:
    """Storages of `components` take `factor` of their bytes; `without_temporaries`: the optimizer's step makes none for a moment."""

    factors: dict[int, float] = {}

    def change(event: MemoryEvent) -> MemoryEvent | None:
        if event.kind == "alloc":
            is_temporary = event.phase == "optimizer" and event.component == "workspace"
            scale = factor if event.component in components else 0.0 if without_temporaries and is_temporary else 1.0
            factors[event.storage] = scale
        return replace(event, size_bytes=int(factors[event.storage] * event.size_bytes))

    return change


def _fused(optimizer: Any) -> Callable[[Any], Any] | None:
    """The same optimizer, fused, where torch has it so and it isn't already."""
    name = optimizer if isinstance(optimizer, str) else type(optimizer).__name__
    if name.lower() not in ("adam", "adamw", "sgd", "adagrad"):
        return None
    if not isinstance(optimizer, str) and any(group.get("fused") for group in optimizer.param_groups):
        return None

    def make(parameters: Any) -> Any:
        import torch

        kinds = {kind.lower(): getattr(torch.optim, kind) for kind in ("Adam", "AdamW", "SGD", "Adagrad")}
        return kinds[name.lower()](parameters, lr=1e-3, fused=True)

    return make


def halved(value: Any) -> Any:
    """The same inputs with half the samples, as shapes. Raises EstimateError where a tensor's first dimension is not an even number."""
    shape, dtype = _spec(value)
    if shape is not None:
        if not shape or shape[0] < 2 or shape[0] % 2:
            raise EstimateError("the batch cannot be halved")
        return (shape[0] // 2, *shape[1:]), dtype
    if isinstance(value, Mapping):
        return {key: halved(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map(halved, value))
    return value


def _spec(value: Any) -> tuple[tuple[int, ...] | None, str]:
    """Shape and dtype name of a tensor or of what stands for one."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return tuple(value.shape), str(value.dtype).removeprefix("torch.")
    if (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[1], str)
        and isinstance(value[0], tuple | list)
    ):
        return tuple(value[0]), value[1]
    return None, ""
