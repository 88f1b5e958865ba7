"""Each change as the formula has it: a spec with the change made, or None where it is made already or makes no sense."""

from __future__ import annotations

from dataclasses import replace

from memagent.estimator.advice.script_facts import lora_targets
from memagent.estimator.formula.precision import PRECISIONS
from memagent.estimator.formula.spec import TrainingSpec

RANKS = 8
"""Ranks that sharding is advised for where there is only one: a usual machine."""
LORA_RANK = 16
_ADAMS = ("adam", "adamw", "nadam", "radam", "amsgrad")


def zero_grad(spec: TrainingSpec) -> TrainingSpec | None:
    return None if spec.set_to_none or spec.accumulation > 1 else replace(spec, set_to_none=True)


def attention(spec: TrainingSpec) -> TrainingSpec | None:
    return None if spec.attention == "sdpa" else replace(spec, attention="sdpa")


def no_cache(spec: TrainingSpec) -> TrainingSpec | None:
    return replace(spec, use_cache=False) if spec.use_cache else None


def optimizer_step(spec: TrainingSpec) -> TrainingSpec | None:
    if spec.step_implementation != "foreach" or spec.rule.always_single:
        return None
    fused = spec.optimizer.lower() in ("adam", "adamw", "amsgrad", "sgd", "momentum", "adagrad")
    return replace(spec, implementation="fused" if fused else "single")


def autocast(spec: TrainingSpec) -> TrainingSpec | None:
    return replace(spec, precision="amp") if spec.precision == "fp32" else None


def in_bf16(spec: TrainingSpec) -> TrainingSpec | None:
    return (
        replace(spec, precision="bf16")
        if PRECISIONS[spec.precision].weight > 2 or spec.numbers.master
        else None
    )


def chunked_loss(spec: TrainingSpec) -> TrainingSpec | None:
    usual = spec.loss == "eager" and _is_decoder(spec)
    return replace(spec, loss="chunked") if usual else None


def eight_bit(spec: TrainingSpec) -> TrainingSpec | None:
    return replace(spec, optimizer="adamw8bit") if spec.optimizer.lower() in _ADAMS else None


def paged(spec: TrainingSpec) -> TrainingSpec | None:
    """As it is when memory is short: the states are on the host."""
    if spec.offload_optimizer or spec.optimizer.lower() not in (*_ADAMS, "adam8bit", "adamw8bit"):
        return None
    return replace(spec, optimizer="paged_adamw8bit", offload_optimizer=True)


def adafactor(spec: TrainingSpec) -> TrainingSpec | None:
    return replace(spec, optimizer="adafactor") if spec.optimizer.lower() in _ADAMS else None


def checkpointing(spec: TrainingSpec) -> TrainingSpec | None:
    if spec.model.parameters is not None or (
        spec.checkpointing == "full" and spec.checkpoint_every == 1
    ):
        return None
    return replace(spec, checkpointing="full", checkpoint_every=1)


def lora(spec: TrainingSpec) -> TrainingSpec | None:
    if spec.lora_rank is not None or spec.quantised is not None or not lora_targets(spec):
        return None
    return replace(
        spec, precision=_half(spec), lora_rank=LORA_RANK, lora_targets=lora_targets(spec)
    )


def qlora(spec: TrainingSpec) -> TrainingSpec | None:
    if spec.quantised is not None or not _is_decoder(spec) or not lora_targets(spec):
        return None
    adapted = spec if spec.lora_rank is not None else lora(spec)
    return (
        None if adapted is None else replace(adapted, precision=_half(spec), quantised="nf4-double")
    )


def _is_decoder(spec: TrainingSpec) -> bool:
    """A causal language model: the lines of code are for these."""
    return spec.model.kind_of_head == "lm" and not spec.model.decoder_layers


def _half(spec: TrainingSpec) -> str:
    """Frozen weights need no fp32 copy of themselves."""
    return spec.precision if spec.precision in ("bf16", "fp16") else "bf16"


def zero_1(spec: TrainingSpec) -> TrainingSpec | None:
    return _sharded(spec, 1)


def zero_2(spec: TrainingSpec) -> TrainingSpec | None:
    return _sharded(spec, 2)


def zero_3(spec: TrainingSpec) -> TrainingSpec | None:
    return _sharded(spec, 3)


def _sharded(spec: TrainingSpec, stage: int) -> TrainingSpec | None:
    plan = spec.parallel
    if plan.zero >= stage:
        return None
    return replace(
        spec, parallel=replace(plan, data=plan.data if plan.data > 1 else RANKS, zero=stage)
    )


def offload_optimizer(spec: TrainingSpec) -> TrainingSpec | None:
    return (
        None if spec.offload_optimizer or spec.rule.paged else replace(spec, offload_optimizer=True)
    )


def offload_parameters(spec: TrainingSpec) -> TrainingSpec | None:
    plan = spec.parallel
    if (
        spec.offload_parameters
        or spec.model.parameters is not None
        or plan.tensor * plan.pipeline > 1
    ):
        return None
    return replace(spec, offload_parameters=True, offload_optimizer=True)


def not_known(_: TrainingSpec) -> None:
    """A formula cannot tell."""


def smaller_batch(spec: TrainingSpec, parts: int) -> TrainingSpec | None:
    """The batch in so many parts; None where it cannot be divided so."""
    if spec.batch % parts or parts < 2:
        return None
    return replace(spec, batch=spec.batch // parts, accumulation=spec.accumulation * parts)
