"""Changes of what stays from step to step: the optimizer, its states, and their place."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from memagent.estimator.advice import trace_rewrites
from memagent.estimator.advice.change import (
    ADVISED_RANKS,
    MemoryChange,
    TraceChange,
    TracedStep,
    rewrite,
)
from memagent.estimator.advice.script_profile import ScriptProfile
from memagent.estimator.formula.spec import TrainingSpec

_OPTIMIZER_CHANGES = frozenset(
    {"optimizer_step", "eight_bit", "paged", "adafactor", "offload_optimizer", "offload_parameters"}
)
_SHARDING_CHANGES = frozenset({"zero_1", "zero_2", "zero_3", "offload_parameters"})
_SPEC_ADAMS = ("adam", "adamw", "nadam", "radam", "amsgrad")
_TORCH_ADAMS = ("Adam", "AdamW", "NAdam", "RAdam")


class OptimizerStepWithoutForeach(MemoryChange):
    key = "optimizer_step"
    name = "Optimizer step without foreach"
    effect = "foreach, the default on CUDA, briefly copies all gradients."
    cost = "none: a fused step is faster, a loop a little slower"
    cost_rank = 0
    excludes = _OPTIMIZER_CHANGES

    def apply_to_spec(self, spec: TrainingSpec) -> TrainingSpec | None:
        if spec.step_implementation != "foreach" or spec.optimizer_rule.always_single:
            return None
        has_fused = ("adam", "adamw", "amsgrad", "sgd", "momentum", "adagrad")
        is_fused = spec.optimizer.lower() in has_fused
        return replace(spec, implementation="fused" if is_fused else "single")

    def apply_to_trace(self, step: TracedStep) -> TraceChange | None:
        if not any(event.op.startswith("aten::_foreach") for event in step.trace.events):
            return None
        if step.script.has_fused_step:
            return rewrite(trace_rewrites.without_temporaries)
        return rewrite(trace_rewrites.with_one_parameter_at_a_time)

    def snippet(self, script: ScriptProfile) -> str:
        option = "fused=True" if script.has_fused_step else "foreach=False"
        return f"optimizer = torch.optim.{script.optimizer}(model.parameters(), lr=lr, {option})"


class EightBitAdam(MemoryChange):
    key = "eight_bit"
    name = "8-bit Adam"
    effect = "The optimizer's two states take one byte a value each."
    cost = "0 to 10 % slower steps of the optimizer"
    cost_rank = 1
    excludes = _OPTIMIZER_CHANGES
    prefix = ""

    def apply_to_spec(self, spec: TrainingSpec) -> TrainingSpec | None:
        is_adam = spec.optimizer.lower() in _SPEC_ADAMS
        return replace(spec, optimizer="adamw8bit") if is_adam else None

    def apply_to_trace(self, step: TracedStep) -> TraceChange | None:
        is_adam = step.trace.optimizer in _TORCH_ADAMS
        if not is_adam or not step.has("optimizer_state") or not step.is_cuda:
            return None
        return rewrite(trace_rewrites.with_eight_bit_states)

    def snippet(self, script: ScriptProfile) -> str:
        kind = self.prefix + ("Adam" if script.optimizer == "Adam" else "AdamW") + "8bit"
        return (
            "import bitsandbytes\n\n"
            f"optimizer = bitsandbytes.optim.{kind}(model.parameters(), lr=lr)"
        )


class PagedEightBitAdam(EightBitAdam):
    """Estimated as when memory is short: the states are on the host."""

    key = "paged"
    name = "Paged 8-bit Adam"
    effect = "States take one byte a value, and move to the host when memory is short."
    cost = "none while states fit, slow steps otherwise"
    cost_rank = 2
    prefix = "Paged"

    def apply_to_spec(self, spec: TrainingSpec) -> TrainingSpec | None:
        is_adam = spec.optimizer.lower() in (*_SPEC_ADAMS, "adam8bit", "adamw8bit")
        if spec.offload_optimizer or not is_adam:
            return None
        return replace(spec, optimizer="paged_adamw8bit", offload_optimizer=True)

    def apply_to_trace(self, step: TracedStep) -> TraceChange | None:
        is_adam = step.trace.optimizer in (*_TORCH_ADAMS, "Adam8bit", "AdamW8bit")
        return rewrite(trace_rewrites.without_states) if is_adam and step.is_cuda else None


class Adafactor(MemoryChange):
    key = "adafactor"
    name = "Adafactor"
    effect = "The states of a matrix are one row and one column."
    cost = "about as fast; its learning rates differ"
    cost_rank = 2
    excludes = _OPTIMIZER_CHANGES

    def apply_to_spec(self, spec: TrainingSpec) -> TrainingSpec | None:
        is_adam = spec.optimizer.lower() in _SPEC_ADAMS
        return replace(spec, optimizer="adafactor") if is_adam else None

    def apply_to_trace(self, step: TracedStep) -> TraceChange | None:
        if step.trace.optimizer not in _TORCH_ADAMS or not step.has("optimizer_state"):
            return None
        return TraceChange({"optimizer": "adafactor"})

    def snippet(self, script: ScriptProfile) -> str:
        return "optimizer = torch.optim.Adafactor(model.parameters(), lr=lr)"


class Zero(MemoryChange):
    """A stage of ZeRO: optimizer states (1), gradients too (2), parameters too (3, FSDP)."""

    cost_rank = 6
    needs_more_gpus = True
    excludes = _SHARDING_CHANGES

    def __init__(self, stage: int, name: str, tensors: str, cost: str) -> None:
        self.stage = stage
        self.key = f"zero_{stage}"
        self.name = name
        self.effect = f"{tensors} are divided over {ADVISED_RANKS} GPUs, or those there are."
        self.cost = f"needs more GPUs; {cost}"

    def apply_to_spec(self, spec: TrainingSpec) -> TrainingSpec | None:
        plan = spec.parallel
        if plan.zero >= self.stage:
            return None
        ranks = plan.data if plan.data > 1 else ADVISED_RANKS
        return replace(spec, parallel=replace(plan, data=ranks, zero=self.stage))

    def apply_to_trace(self, step: TracedStep) -> TraceChange | None:
        if not step.is_cuda or (self.stage == 1 and not step.has("optimizer_state")):
            return None
        return rewrite(partial(trace_rewrites.sharded, stage=self.stage, ranks=ADVISED_RANKS))

    def snippet(self, script: ScriptProfile) -> str:
        if self.stage > 1:
            option = "reshard_after_forward=False" if self.stage == 2 else ""
            return _fully_shard(script, option)
        return (
            "from torch.distributed.optim import ZeroRedundancyOptimizer\n\n"
            "optimizer = ZeroRedundancyOptimizer("
            f"model.parameters(), torch.optim.{script.optimizer}, lr=lr)"
        )


class OffloadOptimizer(MemoryChange):
    key = "offload_optimizer"
    name = "Optimizer states on the host"
    effect = "States are in host memory, and the optimizer steps there."
    cost = "1.2 to 3 times slower"
    cost_rank = 7
    excludes = _OPTIMIZER_CHANGES

    def apply_to_spec(self, spec: TrainingSpec) -> TrainingSpec | None:
        if spec.offload_optimizer or spec.optimizer_rule.paged:
            return None
        return replace(spec, offload_optimizer=True)

    def apply_to_trace(self, step: TracedStep) -> TraceChange | None:
        has_states = step.is_cuda and step.has("optimizer_state")
        return rewrite(trace_rewrites.without_states) if has_states else None

    def snippet(self, script: ScriptProfile) -> str:
        return (
            "from torchao.optim import CPUOffloadOptimizer\n\n"
            "optimizer = CPUOffloadOptimizer("
            f"model.parameters(), torch.optim.{script.optimizer}, lr=lr)"
        )


class OffloadParameters(MemoryChange):
    key = "offload_parameters"
    name = "Parameters and states on the host"
    effect = "Weights come to the GPU block by block; gradients and states stay on the host."
    cost = "several times slower"
    cost_rank = 8
    excludes = _OPTIMIZER_CHANGES | _SHARDING_CHANGES

    def apply_to_spec(self, spec: TrainingSpec) -> TrainingSpec | None:
        plan = spec.parallel
        if spec.offload_parameters or spec.model.parameters is not None:
            return None
        if plan.tensor * plan.pipeline > 1:
            return None
        return replace(spec, offload_parameters=True, offload_optimizer=True)

    def apply_to_trace(self, step: TracedStep) -> TraceChange | None:
        has_blocks = step.is_cuda and bool(step.script.blocks)
        return rewrite(trace_rewrites.on_the_host) if has_blocks else None

    def snippet(self, script: ScriptProfile) -> str:
        return _fully_shard(
            script, "offload_policy=CPUOffloadPolicy()", also_import="CPUOffloadPolicy, "
        )


def _fully_shard(script: ScriptProfile, option: str = "", *, also_import: str = "") -> str:
    option = f", {option}" if option else ""
    blocks = ""
    if script.blocks:
        blocks = f"for block in {script.blocks}:\n    fully_shard(block{option})\n"
    start = f"from torch.distributed.fsdp import {also_import}fully_shard  # started by torchrun"
    return f"{start}\n\n{blocks}fully_shard(model{option})  # before the optimizer is made"
