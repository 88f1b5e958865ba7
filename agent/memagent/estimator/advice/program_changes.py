"""Changes of the program: how forward, the loss and the numbers are computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from memagent.estimator import input_specs
from memagent.estimator.advice import trace_rewrites
from memagent.estimator.advice.change import (
    MemoryChange,
    TraceChange,
    TracedStep,
    is_decoder_spec,
    is_decoder_step,
    loss_expression,
    rewrite,
)
from memagent.estimator.advice.script_profile import (
    ScriptProfile,
    checkpointing_method,
    lora_targets,
)
from memagent.estimator.formula.precision import PRECISIONS
from memagent.estimator.formula.spec import TrainingSpec

LORA_RANK = 16
_PRECISION_CHANGES = frozenset({"autocast", "in_bf16", "lora", "qlora"})
_EXPANDABLE_SEGMENTS = "expandable_segments:True"
_STEADY_FORWARDS = 2
"""Forwards to trace of an accumulated step: from the second on they are all the same."""


class ZeroGradToNone(MemoryChange):
    key = "zero_grad"
    name = "Gradients freed between steps"
    effect = "Gradients are freed before the next forward instead of being filled with zeros."
    cost = "none"
    cost_rank = 0

    def apply_to_spec(self, spec: TrainingSpec) -> TrainingSpec | None:
        if spec.set_to_none or spec.accumulation > 1:
            return None
        return replace(spec, set_to_none=True)

    def apply_to_trace(self, step: TracedStep) -> TraceChange | None:
        if step.request.set_to_none or step.request.accumulation > 1:
            return None
        return TraceChange({"set_to_none": True})

    def snippet(self, script: ScriptProfile) -> str:
        return "optimizer.zero_grad(set_to_none=True)"


class FusedAttention(MemoryChange):
    key = "attention"
    name = "Attention by SDPA or FlashAttention"
    effect = "Attention's scores, batch x heads x sequence squared, are never held."
    cost = "faster"
    cost_rank = 0

    def apply_to_spec(self, spec: TrainingSpec) -> TrainingSpec | None:
        return None if spec.attention == "sdpa" else replace(spec, attention="sdpa")

    def apply_to_trace(self, step: TracedStep) -> TraceChange | None:
        if not trace_rewrites.holds_scores(step.trace):
            return None
        return rewrite(trace_rewrites.without_scores)

    def snippet(self, script: ScriptProfile) -> str:
        if script.transformers:
            return 'model.set_attn_implementation("sdpa")'
        return (
            "attended = torch.nn.functional.scaled_dot_product_attention("
            "query, key, value, is_causal=True)"
        )


class NoCache(MemoryChange):
    key = "no_cache"
    name = "No key-value cache in training"
    effect = "transformers fills a cache for generation that training never reads."
    cost = "none"
    cost_rank = 0

    def apply_to_spec(self, spec: TrainingSpec) -> TrainingSpec | None:
        return replace(spec, use_cache=False) if spec.use_cache else None

    def snippet(self, script: ScriptProfile) -> str:
        return "model.config.use_cache = False"


class UseExpandableSegments(MemoryChange):
    key = "expandable_segments"
    name = "Expandable segments in the allocator"
    effect = "Segments grow in place, so that less reserved memory is idle."
    cost = "none"
    cost_rank = 0

    def apply_to_trace(self, step: TracedStep) -> TraceChange | None:
        settings = step.request.allocator
        if not step.is_cuda or _EXPANDABLE_SEGMENTS in settings:
            return None
        return TraceChange({"allocator": ",".join(filter(None, (settings, _EXPANDABLE_SEGMENTS)))})

    def snippet(self, script: ScriptProfile) -> str:
        return f"export PYTORCH_CUDA_ALLOC_CONF={_EXPANDABLE_SEGMENTS}"


class Autocast(MemoryChange):
    key = "autocast"
    name = "Autocast to bf16"
    effect = "Most activations take two bytes a value; weights and states stay in fp32."
    cost = "faster on GPUs with bf16"
    cost_rank = 0
    excludes = _PRECISION_CHANGES

    def apply_to_spec(self, spec: TrainingSpec) -> TrainingSpec | None:
        return replace(spec, precision="amp") if spec.precision == "fp32" else None

    def apply_to_trace(self, step: TracedStep) -> TraceChange | None:
        if step.request.autocast is not None or not step.is_cuda or not step.has_fp32_weights:
            return None
        return TraceChange({"autocast": "bf16"})

    def snippet(self, script: ScriptProfile) -> str:
        loss = loss_expression(script)
        return f'with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = {loss}'


class Bf16Weights(MemoryChange):
    key = "in_bf16"
    name = "Weights, gradients and states in bf16"
    effect = "All trained values take two bytes."
    cost = "faster; small updates are rounded away"
    cost_rank = 1
    excludes = _PRECISION_CHANGES

    def apply_to_spec(self, spec: TrainingSpec) -> TrainingSpec | None:
        is_wide = PRECISIONS[spec.precision].weight > 2 or spec.dtype_bytes.master
        return replace(spec, precision="bf16") if is_wide else None

    def apply_to_trace(self, step: TracedStep) -> TraceChange | None:
        optimizer = step.request.optimizer
        if not step.is_cuda or not step.has_fp32_weights or not _can_be_rebuilt(optimizer):
            return None
        return _in_bf16(step)

    def snippet(self, script: ScriptProfile) -> str:
        return "model = model.to(torch.bfloat16)  # before the optimizer is made"


class ChunkedLoss(MemoryChange):
    key = "chunked_loss"
    name = "Loss in chunks"
    effect = "Logits exist for an eighth of the tokens at a time."
    cost = "0 to 5 % slower"
    cost_rank = 1

    def apply_to_spec(self, spec: TrainingSpec) -> TrainingSpec | None:
        is_usual = spec.loss == "eager" and is_decoder_spec(spec)
        return replace(spec, loss="chunked") if is_usual else None

    def apply_to_trace(self, step: TracedStep) -> TraceChange | None:
        if trace_rewrites.logits_shape(step.trace) is None or not is_decoder_step(step):
            return None
        return rewrite(trace_rewrites.with_chunked_logits)

    def snippet(self, script: ScriptProfile) -> str:
        head, hidden, labels = "model.head", "model.features(inputs)", "targets"
        if script.transformers:
            head = "model.get_output_embeddings()"
            hidden = 'model.base_model(batch["input_ids"]).last_hidden_state[:, :-1]'
            labels = 'batch["labels"][:, 1:]'
        return (
            "from torch.utils.checkpoint import checkpoint\n\n"
            "def part_of_loss(hidden, labels):\n"
            f"    logits = {head}(hidden).float()\n"
            '    return torch.nn.functional.cross_entropy(logits, labels, reduction="sum")\n\n'
            f"hidden, labels = {hidden}.flatten(0, 1), {labels}.flatten()\n"
            "parts = zip(hidden.chunk(8), labels.chunk(8))\n"
            "loss = sum(checkpoint(part_of_loss, *part, use_reentrant=False) for part in parts)"
            " / (labels != -100).sum()"
        )


class SmallerBatch(MemoryChange):
    """A batch in parts, with accumulation; `largest` is the largest batch that fits, if known."""

    key = "smaller_batch"
    name = "Smaller batch, accumulated"
    effect = "Fewer samples are in flight; gradients are accumulated over several forwards."
    cost_rank = 2

    def __init__(self, batch: int, parts: int, *, largest: int | None = None) -> None:
        self.parts = parts
        known = f" (the largest that fits is {largest})" if largest else ""
        division = f"{parts} times batch {batch // parts} in place of batch {batch}"
        self.cost = f"{division}{known}; 0 to 20 % slower"

    def apply_to_spec(self, spec: TrainingSpec) -> TrainingSpec | None:
        parts = self.parts
        if spec.batch % parts or parts < 2:
            return None
        return replace(spec, batch=spec.batch // parts, accumulation=spec.accumulation * parts)

    def apply_to_trace(self, step: TracedStep) -> TraceChange | None:
        batch = step.request.batch
        if batch % self.parts:
            return None
        smaller = step.request.resized(batch // self.parts, step.request.sequence)
        return TraceChange(
            {"inputs": smaller.inputs, "targets": smaller.targets, "accumulation": _STEADY_FORWARDS}
        )

    def snippet(self, script: ScriptProfile) -> str:
        parts = self.parts
        loop = f"for inputs, targets in zip(inputs.chunk({parts}), targets.chunk({parts})):\n"
        loss = loss_expression(script)
        if script.transformers:
            loop = (
                f"parts = zip(*(tensor.chunk({parts}) for tensor in batch.values()))\n"
                "for part in parts:\n"
            )
            loss = "model(**dict(zip(batch, part))).loss"
        return f"{loop}    ({loss} / {parts}).backward()\noptimizer.step()"


class ActivationCheckpointing(MemoryChange):
    key = "checkpointing"
    name = "Activation checkpointing"
    effect = "Blocks save only their input, and run again in backward."
    cost = "20 to 35 % slower"
    cost_rank = 3

    def apply_to_spec(self, spec: TrainingSpec) -> TrainingSpec | None:
        is_full = spec.checkpointing == "full" and spec.checkpoint_every == 1
        if spec.model.parameters is not None or is_full:
            return None
        return replace(spec, checkpointing="full", checkpoint_every=1)

    def apply_to_trace(self, step: TracedStep) -> TraceChange | None:
        has_blocks = bool(step.script.blocks)
        if step.request.checkpointing is not None or not has_blocks or _blocks_recompute(step):
            return None
        return TraceChange({"checkpointing": "full"})

    def snippet(self, script: ScriptProfile) -> str:
        if script.transformers:
            return f'model.{checkpointing_method()}({{"use_reentrant": False}})'
        return (
            "from functools import partial\nfrom torch.utils.checkpoint import checkpoint\n\n"
            f"for block in {script.blocks}:\n"
            "    block.forward = partial(checkpoint, block.forward, use_reentrant=False)"
        )


def _blocks_recompute(step: TracedStep) -> bool:
    """Return True if blocks run again in backward: what they allocate there has a source line."""
    prefix = f"{step.script.blocks}."
    return any(
        f"model.{event.module}.".startswith(prefix)
        for event in step.trace.events
        if event.phase == "backward" and event.kind == "alloc" and event.source
    )


class Lora(MemoryChange):
    key = "lora"
    name = "LoRA of rank 16"
    effect = "Weights are frozen in bf16; small adapters of attention's layers are trained."
    cost = "faster; only adapters are trained"
    cost_rank = 4
    excludes = _PRECISION_CHANGES

    def apply_to_spec(self, spec: TrainingSpec) -> TrainingSpec | None:
        targets = lora_targets(spec)
        if spec.lora_rank is not None or spec.quantised is not None or not targets:
            return None
        precision = _frozen_precision(spec)
        return replace(spec, precision=precision, lora_rank=LORA_RANK, lora_targets=targets)

    def apply_to_trace(self, step: TracedStep) -> TraceChange | None:
        script = step.script
        if not step.is_cuda or not script.targets or not script.blocks:
            return None
        if _has_adapters(step) or not _can_be_rebuilt(step.request.optimizer):
            return None
        adapters = ("lora", {"targets": script.targets, "rank": LORA_RANK})
        return _in_bf16(step).then(TraceChange(edits=(adapters,)))

    def snippet(self, script: ScriptProfile) -> str:
        names = ", ".join(f'"{name}"' for name in script.targets)
        adapters = f"LoraConfig(r={LORA_RANK}, target_modules=[{names}])"
        return (
            "from peft import LoraConfig, get_peft_model\n\n"
            f"model = get_peft_model(model, {adapters})  # before the optimizer is made"
        )


class Qlora(Lora):
    key = "qlora"
    name = "QLoRA: LoRA on NF4 weights"
    effect = "The frozen weights take half a byte a value."
    cost = "30 to 60 % slower than LoRA; only adapters are trained"
    cost_rank = 5

    def apply_to_spec(self, spec: TrainingSpec) -> TrainingSpec | None:
        if spec.quantised is not None or not is_decoder_spec(spec) or not lora_targets(spec):
            return None
        adapted = spec if spec.lora_rank is not None else super().apply_to_spec(spec)
        if adapted is None:
            return None
        return replace(adapted, precision=_frozen_precision(spec), quantised="nf4-double")

    def apply_to_trace(self, step: TracedStep) -> TraceChange | None:
        has_logits = trace_rewrites.logits_shape(step.trace) is not None
        if not step.script.transformers or not has_logits or not is_decoder_step(step):
            return None
        adapted = super().apply_to_trace(step)
        return None if adapted is None else adapted.then(rewrite(trace_rewrites.with_nf4_weights))

    def snippet(self, script: ScriptProfile) -> str:
        return (
            "from transformers import AutoModelForCausalLM, BitsAndBytesConfig\n\n"
            "four_bits = BitsAndBytesConfig(\n"
            '    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,\n'
            "    bnb_4bit_compute_dtype=torch.bfloat16,\n"
            ")\n"
            "model = AutoModelForCausalLM.from_pretrained(name, quantization_config=four_bits)\n"
            f"{super().snippet(script)}"
        )


def _frozen_precision(spec: TrainingSpec) -> str:
    """Return a precision without fp32 copies, which frozen weights don't need."""
    return spec.precision if spec.precision in ("bf16", "fp16") else "bf16"


def _has_adapters(step: TracedStep) -> bool:
    return any("lora_" in event.module or "adapter_" in event.module for event in step.trace.events)


def _in_bf16(step: TracedStep) -> TraceChange:
    """Return the change to bf16 weights and inputs, with a new optimizer of the same class."""
    request, optimizer = step.request, step.request.optimizer
    is_instance = hasattr(optimizer, "param_groups")
    fields: dict[str, Any] = {
        "autocast": None,
        "inputs": input_specs.in_bf16(request.inputs),
        "targets": input_specs.in_bf16(request.targets),
        "optimizer": type(optimizer).__name__ if is_instance else optimizer,
    }
    return TraceChange(fields, (("bf16", {}),))


def _can_be_rebuilt(optimizer: Any) -> bool:
    """Return True if an optimizer of the same class can be made for other parameters."""
    if hasattr(optimizer, "param_groups"):
        return type(optimizer).__module__.startswith("torch.optim")
    return optimizer is not None
