"""Changes of the program: forward, the loss, the precision and the optimizer's step."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
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
    retrace,
    rewrite,
    spec_change,
)
from memagent.estimator.advice.script_profile import (
    ScriptProfile,
    checkpointing_method,
    lora_targets,
)
from memagent.estimator.formula.precision import PRECISIONS
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.request import TraceRequest

LORA_RANK = 16
_EXPANDABLE_SEGMENTS = "expandable_segments:True"
_FUSED_STEPS = ("adam", "adamw", "amsgrad", "sgd", "momentum", "adagrad")
_STEADY_FORWARDS = 2
"""Forwards to trace of an accumulated step: from the second on they are all the same."""


def _keeps_gradients(of: TrainingSpec | TraceRequest) -> bool:
    return not of.set_to_none and of.accumulation <= 1


def _without_foreach(spec: TrainingSpec) -> TrainingSpec | None:
    if spec.step_implementation != "foreach" or spec.optimizer_rule.always_single:
        return None
    is_fused = spec.optimizer.lower() in _FUSED_STEPS
    return replace(spec, implementation="fused" if is_fused else "single")


def _retrace_without_foreach(step: TracedStep) -> TraceChange | None:
    if not any(event.op.startswith("aten::_foreach") for event in step.trace.events):
        return None
    if step.script.has_fused_step:
        return TraceChange(rewrites=(trace_rewrites.without_temporaries,))
    return TraceChange(rewrites=(trace_rewrites.with_one_parameter_at_a_time,))


def _with_expandable_segments(step: TracedStep) -> TraceChange | None:
    settings = step.request.allocator
    if not step.is_cuda or _EXPANDABLE_SEGMENTS in settings:
        return None
    return TraceChange({"allocator": ",".join(filter(None, (settings, _EXPANDABLE_SEGMENTS)))})


def _holds_logits(step: TracedStep) -> bool:
    return trace_rewrites.logits_shape(step.trace) is not None and is_decoder_step(step)


def _chunked_loss_code(script: ScriptProfile) -> str:
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


def _blocks_recompute(step: TracedStep) -> bool:
    """Return True if blocks run again in backward: what they allocate there has a source line."""
    prefix = f"{step.script.blocks}."
    return any(
        f"model.{event.module}.".startswith(prefix)
        for event in step.trace.events
        if event.phase == "backward" and event.kind == "alloc" and event.source
    )


def _checkpointing_code(script: ScriptProfile) -> str:
    if script.transformers:
        return f'model.{checkpointing_method()}({{"use_reentrant": False}})'
    return (
        "from functools import partial\nfrom torch.utils.checkpoint import checkpoint\n\n"
        f"for block in {script.blocks}:\n"
        "    block.forward = partial(checkpoint, block.forward, use_reentrant=False)"
    )


def _with_lora(spec: TrainingSpec) -> TrainingSpec | None:
    targets = lora_targets(spec)
    if spec.lora_rank is not None or spec.quantised is not None or not targets:
        return None
    precision = _frozen_precision(spec)
    return replace(spec, precision=precision, lora_rank=LORA_RANK, lora_targets=targets)


def _retrace_with_lora(step: TracedStep) -> TraceChange | None:
    script, in_bf16 = step.script, _in_bf16(step)
    has_adapters = any("lora_" in e.module or "adapter_" in e.module for e in step.trace.events)
    if in_bf16 is None or has_adapters or not script.targets or not script.blocks:
        return None
    adapters = ("lora", {"targets": script.targets, "rank": LORA_RANK})
    return in_bf16.then(TraceChange(edits=(adapters,)))


def _lora_code(script: ScriptProfile) -> str:
    names = ", ".join(f'"{name}"' for name in script.targets)
    adapters = f"LoraConfig(r={LORA_RANK}, target_modules=[{names}])"
    return (
        "from peft import LoraConfig, get_peft_model\n\n"
        f"model = get_peft_model(model, {adapters})  # before the optimizer is made"
    )


def _with_qlora(spec: TrainingSpec) -> TrainingSpec | None:
    if spec.quantised is not None or not is_decoder_spec(spec) or not lora_targets(spec):
        return None
    adapted = spec if spec.lora_rank is not None else _with_lora(spec)
    if adapted is None:
        return None
    return replace(adapted, precision=_frozen_precision(spec), quantised="nf4-double")


def _retrace_with_qlora(step: TracedStep) -> TraceChange | None:
    adapted = _retrace_with_lora(step)
    if not step.script.transformers or not _holds_logits(step) or adapted is None:
        return None
    return adapted.then(TraceChange(rewrites=(trace_rewrites.with_nf4_weights,)))


def _qlora_code(script: ScriptProfile) -> str:
    return (
        "from transformers import AutoModelForCausalLM, BitsAndBytesConfig\n\n"
        "four_bits = BitsAndBytesConfig(\n"
        '    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,\n'
        "    bnb_4bit_compute_dtype=torch.bfloat16,\n"
        ")\n"
        "model = AutoModelForCausalLM.from_pretrained(name, quantization_config=four_bits)\n"
        f"{_lora_code(script)}"
    )


def _frozen_precision(spec: TrainingSpec) -> str:
    """Return a precision without fp32 copies, which frozen weights don't need."""
    return spec.precision if spec.precision in ("bf16", "fp16") else "bf16"


def _in_bf16(step: TracedStep) -> TraceChange | None:
    """Return the change to bf16 weights and inputs, with a new optimizer of the same class."""
    request, optimizer = step.request, step.request.optimizer
    is_instance = hasattr(optimizer, "param_groups")
    is_known = (
        type(optimizer).__module__.startswith("torch.optim")
        if is_instance
        else optimizer is not None
    )
    if not step.is_cuda or not is_known:
        return None
    fields: dict[str, Any] = {
        "autocast": None,
        "inputs": input_specs.in_bf16(request.inputs),
        "targets": input_specs.in_bf16(request.targets),
        "optimizer": type(optimizer).__name__ if is_instance else optimizer,
    }
    return TraceChange(fields, (("bf16", {}),))


PROGRAM_CHANGES = (
    MemoryChange(
        key="zero_grad",
        name="Gradients freed between steps",
        effect="Gradients are freed before the next forward instead of being filled with zeros.",
        apply_to_spec=spec_change(_keeps_gradients, set_to_none=True),
        apply_to_trace=retrace(lambda step: _keeps_gradients(step.request), set_to_none=True),
        code="optimizer.zero_grad(set_to_none=True)",
    ),
    MemoryChange(
        key="attention",
        name="Attention by SDPA or FlashAttention",
        effect="Attention's scores, batch x heads x sequence squared, are never held.",
        cost="faster",
        apply_to_spec=spec_change(lambda spec: spec.attention != "sdpa", attention="sdpa"),
        apply_to_trace=rewrite(
            lambda step: trace_rewrites.holds_scores(step.trace), trace_rewrites.without_scores
        ),
        code=lambda script: (
            'model.set_attn_implementation("sdpa")'
            if script.transformers
            else "attended = torch.nn.functional.scaled_dot_product_attention("
            "query, key, value, is_causal=True)"
        ),
    ),
    MemoryChange(
        key="no_cache",
        name="No key-value cache in training",
        effect="transformers fills a cache for generation that training never reads.",
        apply_to_spec=spec_change(lambda spec: spec.has_cache, use_cache=False),
        code="model.config.use_cache = False",
    ),
    MemoryChange(
        key="optimizer_step",
        name="Optimizer step without foreach",
        effect="foreach, the default on CUDA, briefly copies all gradients.",
        cost="none: a fused step is faster, a loop a little slower",
        groups=("optimizer",),
        apply_to_spec=_without_foreach,
        apply_to_trace=_retrace_without_foreach,
        code=lambda script: (
            f"optimizer = torch.optim.{script.optimizer}(model.parameters(), lr=lr, "
            f"{'fused=True' if script.has_fused_step else 'foreach=False'})"
        ),
    ),
    MemoryChange(
        key="expandable_segments",
        name="Expandable segments in the allocator",
        effect="Segments grow in place, so that less reserved memory is idle.",
        apply_to_trace=_with_expandable_segments,
        code=f"export PYTORCH_CUDA_ALLOC_CONF={_EXPANDABLE_SEGMENTS}",
    ),
    MemoryChange(
        key="autocast",
        name="Autocast to bf16",
        effect="Most activations take two bytes a value; weights and states stay in fp32.",
        cost="faster on GPUs with bf16",
        groups=("precision",),
        apply_to_spec=spec_change(lambda spec: spec.precision == "fp32", precision="amp"),
        apply_to_trace=retrace(
            lambda step: step.request.autocast is None and step.is_cuda and step.has_fp32_weights,
            autocast="bf16",
        ),
        code=lambda script: (
            'with torch.autocast("cuda", dtype=torch.bfloat16):\n'
            f"    loss = {loss_expression(script)}"
        ),
    ),
    MemoryChange(
        key="in_bf16",
        name="Weights, gradients and states in bf16",
        effect="All trained values take two bytes.",
        cost="faster; small updates are rounded away",
        cost_rank=1,
        groups=("precision",),
        apply_to_spec=spec_change(
            lambda spec: PRECISIONS[spec.precision].weight > 2 or bool(spec.dtype_bytes.master),
            precision="bf16",
        ),
        apply_to_trace=lambda step: _in_bf16(step) if step.has_fp32_weights else None,
        code="model = model.to(torch.bfloat16)  # before the optimizer is made",
    ),
    MemoryChange(
        key="chunked_loss",
        name="Loss in chunks",
        effect="Logits exist for an eighth of the tokens at a time.",
        cost="0 to 5 % slower",
        cost_rank=1,
        apply_to_spec=spec_change(
            lambda spec: spec.loss == "eager" and is_decoder_spec(spec), loss="chunked"
        ),
        apply_to_trace=rewrite(_holds_logits, trace_rewrites.with_chunked_logits),
        code=_chunked_loss_code,
    ),
    MemoryChange(
        key="checkpointing",
        name="Activation checkpointing",
        effect="Blocks save only their input, and run again in backward.",
        cost="20 to 35 % slower",
        cost_rank=3,
        apply_to_spec=spec_change(
            lambda spec: (spec.checkpointing, spec.checkpoint_every) != ("full", 1),
            checkpointing="full",
            checkpoint_every=1,
        ),
        apply_to_trace=retrace(
            lambda step: (
                step.request.checkpointing is None
                and bool(step.script.blocks)
                and not _blocks_recompute(step)
            ),
            checkpointing="full",
        ),
        code=_checkpointing_code,
    ),
    MemoryChange(
        key="lora",
        name="LoRA of rank 16",
        effect="Weights are frozen in bf16; small adapters of attention's layers are trained.",
        cost="faster; only adapters are trained",
        cost_rank=4,
        groups=("precision",),
        apply_to_spec=_with_lora,
        apply_to_trace=_retrace_with_lora,
        code=_lora_code,
    ),
    MemoryChange(
        key="qlora",
        name="QLoRA: LoRA on NF4 weights",
        effect="The frozen weights take half a byte a value.",
        cost="30 to 60 % slower than LoRA; only adapters are trained",
        cost_rank=5,
        groups=("precision",),
        apply_to_spec=_with_qlora,
        apply_to_trace=_retrace_with_qlora,
        code=_qlora_code,
    ),
)
"""Sorted by cost."""


class SmallerBatch(MemoryChange):
    """A batch in parts, with accumulation; `largest` is the largest batch that fits, if known."""

    key = "smaller_batch"
    name = "Smaller batch, accumulated"
    cost_rank = 2

    def __init__(self, batch: int, parts: int, *, largest: int | None = None) -> None:
        note = f" (the largest that then fits is {largest})" if largest else ""
        division = f"{parts} times batch {batch // parts} in place of batch {batch}"
        super().__init__(
            key=self.key,
            name=self.name,
            effect="Fewer samples are in flight; gradients are accumulated over several forwards.",
            cost=f"{division}{note}; 0 to 20 % slower",
            cost_rank=self.cost_rank,
            apply_to_spec=partial(_divide, parts=parts),
            apply_to_trace=partial(_retrace_part, parts=parts),
            code=partial(_accumulation_code, parts=parts),
        )


def _divide(spec: TrainingSpec, parts: int) -> TrainingSpec | None:
    if spec.batch % parts or parts < 2:
        return None
    return replace(spec, batch=spec.batch // parts, accumulation=spec.accumulation * parts)


def _retrace_part(step: TracedStep, parts: int) -> TraceChange | None:
    batch = step.request.batch
    if batch % parts:
        return None
    smaller = step.request.resized(batch // parts, step.request.sequence)
    return TraceChange(
        {"inputs": smaller.inputs, "targets": smaller.targets, "accumulation": _STEADY_FORWARDS}
    )


def _accumulation_code(script: ScriptProfile, parts: int) -> str:
    loop = f"for inputs, targets in zip(inputs.chunk({parts}), targets.chunk({parts})):\n"
    loss = loss_expression(script)
    if script.transformers:
        loop = (
            f"parts = zip(*(tensor.chunk({parts}) for tensor in batch.values()))\n"
            "for part in parts:\n"
        )
        loss = "model(**dict(zip(batch, part))).loss"
    return f"{loop}    ({loss} / {parts}).backward()\noptimizer.step()"
