"""Changes of what stays from step to step: the optimizer's states, and the place of weights."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from memagent.estimator.advice import trace_rewrites
from memagent.estimator.advice.change import (
    ADVISED_RANKS,
    MemoryChange,
    TracedStep,
    retrace,
    rewrite,
    spec_change,
)
from memagent.estimator.advice.script_profile import ScriptProfile
from memagent.estimator.formula.spec import TrainingSpec

_SPEC_ADAMS = ("adam", "adamw", "nadam", "radam", "amsgrad")
_TORCH_ADAMS = ("Adam", "AdamW", "NAdam", "RAdam")


def _is_adam(spec: TrainingSpec) -> bool:
    return spec.optimizer.lower() in _SPEC_ADAMS


def _holds_adam_states(step: TracedStep) -> bool:
    return step.trace.optimizer in _TORCH_ADAMS and step.has("optimizer_state")


def _bitsandbytes(script: ScriptProfile, prefix: str = "") -> str:
    kind = prefix + ("Adam" if script.optimizer == "Adam" else "AdamW") + "8bit"
    return (
        f"import bitsandbytes\n\noptimizer = bitsandbytes.optim.{kind}(model.parameters(), lr=lr)"
    )


def _wrapped_optimizer(script: ScriptProfile, module: str, wrapper: str) -> str:
    return (
        f"from {module} import {wrapper}\n\n"
        f"optimizer = {wrapper}(model.parameters(), torch.optim.{script.optimizer}, lr=lr)"
    )


def _fully_shard(script: ScriptProfile, option: str = "", also_import: str = "") -> str:
    option = f", {option}" if option else ""
    blocks = ""
    if script.blocks:
        blocks = f"for block in {script.blocks}:\n    fully_shard(block{option})\n"
    start = f"from torch.distributed.fsdp import {also_import}fully_shard  # started by torchrun"
    return f"{start}\n\n{blocks}fully_shard(model{option})  # before the optimizer is made"


def _with_stage(spec: TrainingSpec, stage: int) -> TrainingSpec | None:
    plan = spec.parallel
    if plan.zero >= stage:
        return None
    ranks = plan.data if plan.data > 1 else ADVISED_RANKS
    return replace(spec, parallel=replace(plan, data=ranks, zero=stage))


def _zero_code(script: ScriptProfile, stage: int) -> str:
    if stage == 1:
        return _wrapped_optimizer(script, "torch.distributed.optim", "ZeroRedundancyOptimizer")
    return _fully_shard(script, "reshard_after_forward=False" if stage == 2 else "")


def _zero(stage: int, name: str, tensors: str, cost: str) -> MemoryChange:
    return MemoryChange(
        key=f"zero_{stage}",
        name=name,
        effect=f"{tensors} are divided over {ADVISED_RANKS} GPUs, or those there are.",
        cost=f"needs more GPUs; {cost}",
        cost_rank=6,
        needs_more_gpus=True,
        groups=("sharding",),
        apply_to_spec=partial(_with_stage, stage=stage),
        apply_to_trace=rewrite(
            lambda step: step.is_cuda and (stage > 1 or step.has("optimizer_state")),
            partial(trace_rewrites.sharded, stage=stage, ranks=ADVISED_RANKS),
        ),
        code=partial(_zero_code, stage=stage),
    )


STATE_CHANGES = (
    MemoryChange(
        key="eight_bit",
        name="8-bit Adam",
        effect="The optimizer's two states take one byte a value each.",
        cost="0 to 10 % slower steps of the optimizer",
        cost_rank=1,
        groups=("optimizer",),
        apply_to_spec=spec_change(_is_adam, optimizer="adamw8bit"),
        apply_to_trace=rewrite(
            lambda step: step.is_cuda and _holds_adam_states(step),
            trace_rewrites.with_eight_bit_states,
        ),
        code=_bitsandbytes,
    ),
    MemoryChange(  # estimated as when memory is short: the states are on the host
        key="paged",
        name="Paged 8-bit Adam",
        effect="States take one byte a value, and move to the host when memory is short.",
        cost="none while states fit, slow steps otherwise",
        cost_rank=2,
        groups=("optimizer",),
        apply_to_spec=spec_change(
            lambda spec: (
                not spec.offload_optimizer
                and spec.optimizer.lower() in (*_SPEC_ADAMS, "adam8bit", "adamw8bit")
            ),
            optimizer="paged_adamw8bit",
            offload_optimizer=True,
        ),
        apply_to_trace=rewrite(
            lambda step: (
                step.is_cuda and step.trace.optimizer in (*_TORCH_ADAMS, "Adam8bit", "AdamW8bit")
            ),
            trace_rewrites.without_states,
        ),
        code=partial(_bitsandbytes, prefix="Paged"),
    ),
    MemoryChange(
        key="adafactor",
        name="Adafactor",
        effect="The states of a matrix are one row and one column.",
        cost="about as fast; its learning rates differ",
        cost_rank=2,
        groups=("optimizer",),
        apply_to_spec=spec_change(_is_adam, optimizer="adafactor"),
        apply_to_trace=retrace(_holds_adam_states, optimizer="adafactor"),
        code="optimizer = torch.optim.Adafactor(model.parameters(), lr=lr)",
    ),
    _zero(1, "ZeRO-1", "The optimizer's states", "little communication"),
    _zero(2, "ZeRO-2", "States and gradients", "little communication"),
    _zero(
        3, "FSDP (ZeRO-3)", "Parameters, gradients and states", "half as much communication again"
    ),
    MemoryChange(
        key="offload_optimizer",
        name="Optimizer states on the host",
        effect="States are in host memory, and the optimizer steps there.",
        cost="1.2 to 3 times slower",
        cost_rank=7,
        groups=("optimizer",),
        apply_to_spec=spec_change(
            lambda spec: not spec.offload_optimizer and not spec.optimizer_rule.paged,
            offload_optimizer=True,
        ),
        apply_to_trace=rewrite(
            lambda step: step.is_cuda and step.has("optimizer_state"), trace_rewrites.without_states
        ),
        code=partial(_wrapped_optimizer, module="torchao.optim", wrapper="CPUOffloadOptimizer"),
    ),
    MemoryChange(
        key="offload_parameters",
        name="Parameters and states on the host",
        effect="Weights come to the GPU block by block; gradients and states stay on the host.",
        cost="several times slower",
        cost_rank=8,
        groups=("optimizer", "sharding"),
        apply_to_spec=spec_change(
            lambda spec: (
                not spec.offload_parameters and spec.parallel.tensor * spec.parallel.pipeline == 1
            ),
            offload_parameters=True,
            offload_optimizer=True,
        ),
        apply_to_trace=rewrite(
            lambda step: step.is_cuda and bool(step.script.blocks), trace_rewrites.on_the_host
        ),
        code=partial(
            _fully_shard,
            option="offload_policy=CPUOffloadPolicy()",
            also_import="CPUOffloadPolicy, ",
        ),
    ),
)
"""Sorted by cost."""
