"""The catalogue of changes that save memory: what each is called, does and costs, its lines of code, and how it is applied.

One entry serves everything that advises: `changes` applies it to a formula's spec, `what_if` to a traced step, `advice` names it beside
a warning. What it saves is never written here: the run is estimated anew with the change made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from memagent.estimator.advice import apply_to_spec, apply_to_trace, snippets
from memagent.estimator.advice.apply_to_spec import RANKS
from memagent.estimator.advice.apply_to_trace import Step, TraceChange
from memagent.estimator.advice.script_facts import Script
from memagent.estimator.formula.spec import TrainingSpec

SMALLER_BATCH = "smaller_batch"


@dataclass(frozen=True)
class Change:
    """`name` is short, `sentence` says what it does to memory, `cost` what it usually costs in speed; `pain` orders the costs, 0 none.

    `code` gives the lines to add. `on_spec` and `on_step` apply it: None where it is made already or makes no sense. `more_gpus`: it
    needs GPUs that a run on one does not have. `instead_of` are keys of changes that make no sense beside it.
    """

    key: str
    name: str
    sentence: str
    cost: str
    pain: int
    code: Callable[[Script], str]
    on_spec: Callable[[TrainingSpec], TrainingSpec | None]
    on_step: Callable[[Step], TraceChange | None]
    more_gpus: bool = False
    instead_of: frozenset[str] = frozenset()


_OPTIMIZERS = frozenset(
    {"optimizer_step", "eight_bit", "paged", "adafactor", "offload_optimizer", "offload_parameters"}
)
_SHARDINGS = frozenset({"zero_1", "zero_2", "zero_3", "offload_parameters"})
_NUMBERS = frozenset({"autocast", "in_bf16", "lora", "qlora"})

CHANGES = (
    Change(
        "zero_grad",
        "Gradients freed between steps",
        "Gradients are freed before the next forward instead of being filled with zeros.",
        "none",
        0,
        snippets.zero_grad,
        apply_to_spec.zero_grad,
        apply_to_trace.zero_grad,
    ),
    Change(
        "attention",
        "Attention by SDPA or FlashAttention",
        "Attention's scores, batch x heads x sequence squared, are never held.",
        "faster",
        0,
        snippets.attention,
        apply_to_spec.attention,
        apply_to_trace.attention,
    ),
    Change(
        "no_cache",
        "No key-value cache in training",
        "transformers fills a cache for generation that training never reads.",
        "none",
        0,
        snippets.no_cache,
        apply_to_spec.no_cache,
        apply_to_trace.not_seen,
    ),
    Change(
        "optimizer_step",
        "Optimizer step without foreach",
        "foreach, the default on CUDA, copies all gradients for a moment.",
        "none: a fused step is faster, a loop a little slower",
        0,
        snippets.optimizer_step,
        apply_to_spec.optimizer_step,
        apply_to_trace.optimizer_step,
        instead_of=_OPTIMIZERS,
    ),
    Change(
        "expandable_segments",
        "Expandable segments in the allocator",
        "Segments grow in place, so that less is reserved than lies idle.",
        "none",
        0,
        snippets.expandable_segments,
        apply_to_spec.not_known,
        apply_to_trace.expandable_segments,
    ),
    Change(
        "autocast",
        "Autocast to bf16",
        "Most activations take two bytes a value; weights and states stay in fp32.",
        "faster on GPUs with bf16",
        0,
        snippets.autocast,
        apply_to_spec.autocast,
        apply_to_trace.autocast,
        instead_of=_NUMBERS,
    ),
    Change(
        "in_bf16",
        "Weights, gradients and states in bf16",
        "Everything that is trained takes two bytes a value.",
        "faster; small updates are rounded away",
        1,
        snippets.in_bf16,
        apply_to_spec.in_bf16,
        apply_to_trace.in_bf16,
        instead_of=_NUMBERS,
    ),
    Change(
        "chunked_loss",
        "Loss in chunks",
        "Logits exist for an eighth of the tokens at a time.",
        "0 to 5 % slower",
        1,
        snippets.chunked_loss,
        apply_to_spec.chunked_loss,
        apply_to_trace.chunked_loss,
    ),
    Change(
        "eight_bit",
        "8-bit Adam",
        "The optimizer's two states take one byte a value each.",
        "0 to 10 % slower steps of the optimizer",
        1,
        snippets.eight_bit,
        apply_to_spec.eight_bit,
        apply_to_trace.eight_bit,
        instead_of=_OPTIMIZERS,
    ),
    Change(
        "paged",
        "Paged 8-bit Adam",
        "States in one byte a value, which leave for the host when memory is short.",
        "none while states fit, slow steps where they do not",
        2,
        snippets.paged,
        apply_to_spec.paged,
        apply_to_trace.paged,
        instead_of=_OPTIMIZERS,
    ),
    Change(
        "adafactor",
        "Adafactor",
        "A row and a column stand for each matrix of states.",
        "about as fast; its learning rates differ",
        2,
        snippets.adafactor,
        apply_to_spec.adafactor,
        apply_to_trace.adafactor,
        instead_of=_OPTIMIZERS,
    ),
    Change(
        "checkpointing",
        "Activation checkpointing",
        "Blocks keep their input only, and run again in backward.",
        "20 to 35 % slower",
        3,
        snippets.checkpointing,
        apply_to_spec.checkpointing,
        apply_to_trace.checkpointing,
    ),
    Change(
        "lora",
        "LoRA of rank 16",
        "Weights are frozen in bf16; small adapters are trained beside attention's.",
        "faster; only adapters are trained",
        4,
        snippets.lora,
        apply_to_spec.lora,
        apply_to_trace.lora,
        instead_of=_NUMBERS,
    ),
    Change(
        "qlora",
        "QLoRA: LoRA on NF4 weights",
        "The frozen weights take half a byte a value.",
        "30 to 60 % slower than LoRA; only adapters are trained",
        5,
        snippets.qlora,
        apply_to_spec.qlora,
        apply_to_trace.qlora,
        instead_of=_NUMBERS,
    ),
    Change(
        "zero_1",
        "ZeRO-1",
        f"The optimizer's states are divided over {RANKS} GPUs, or those there are.",
        "needs more GPUs; little communication",
        6,
        snippets.zero_1,
        apply_to_spec.zero_1,
        apply_to_trace.zero_1,
        True,
        _SHARDINGS,
    ),
    Change(
        "zero_2",
        "ZeRO-2",
        f"States and gradients are divided over {RANKS} GPUs, or those there are.",
        "needs more GPUs; little communication",
        6,
        snippets.zero_2,
        apply_to_spec.zero_2,
        apply_to_trace.zero_2,
        True,
        _SHARDINGS,
    ),
    Change(
        "zero_3",
        "FSDP (ZeRO-3)",
        f"Parameters, gradients and states are divided over {RANKS} GPUs, or those there are.",
        "needs more GPUs; half as much communication again",
        6,
        snippets.zero_3,
        apply_to_spec.zero_3,
        apply_to_trace.zero_3,
        True,
        _SHARDINGS,
    ),
    Change(
        "offload_optimizer",
        "Optimizer states on the host",
        "States live in host memory, and the optimizer steps there.",
        "1.2 to 3 times slower",
        7,
        snippets.offload_optimizer,
        apply_to_spec.offload_optimizer,
        apply_to_trace.offload_optimizer,
        instead_of=_OPTIMIZERS,
    ),
    Change(
        "offload_parameters",
        "Parameters and states on the host",
        "Weights come to the GPU block by block; all else stays on the host.",
        "several times slower",
        8,
        snippets.offload_parameters,
        apply_to_spec.offload_parameters,
        apply_to_trace.offload_parameters,
        instead_of=_OPTIMIZERS | _SHARDINGS,
    ),
)

BY_KEY = {change.key: change for change in CHANGES}


def smaller_batch(batch: int, parts: int, *, largest: int | None = None) -> Change:
    """A batch in so many parts, with accumulation to make up for it; `largest` is the largest batch that fits, where that is known."""
    pieces = f"{parts} times batch {batch // parts} in place of batch {batch}"
    known = f" (the largest that fits is {largest})" if largest else ""
    return Change(
        SMALLER_BATCH,
        SMALLER_BATCH_NAME,
        "Fewer samples are in flight; gradients are added up over several forwards.",
        f"{pieces}{known}; 0 to 20 % slower",
        2,
        partial(snippets.accumulation, parts=parts),
        partial(apply_to_spec.smaller_batch, parts=parts),
        partial(apply_to_trace.smaller_batch, parts=parts),
    )


SMALLER_BATCH_NAME = "Smaller batch, accumulated"
NAMES = {**{change.name: change.key for change in CHANGES}, SMALLER_BATCH_NAME: SMALLER_BATCH}
"""Keys by name: what an advice that came over the wire is."""
PAIN = {**{change.key: change.pain for change in CHANGES}, SMALLER_BATCH: 2}


def are_compatible(chosen: tuple[Change, ...]) -> bool:
    """Whether these can be made together."""
    return not any(
        other.key in change.instead_of
        for change in chosen
        for other in chosen
        if other is not change
    )
