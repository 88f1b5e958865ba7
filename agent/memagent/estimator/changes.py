"""What to change so that a run fits, each change re-estimated for this run: never a rule of thumb.

1. Each change that is not made yet is applied to the spec by itself, and the estimate's difference is its saving.
2. Changes that save less than 1 % are left out: they would not be felt.
3. They are ranked by whether they make the run fit, then by what they cost in speed, then by saving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from memagent.errors import EstimateError
from memagent.estimator.estimate import Estimate
from memagent.estimator.formula import estimate_training
from memagent.estimator.parallel import Parallel
from memagent.estimator.search import largest_batch
from memagent.estimator.shapes import matrices
from memagent.estimator.spec import TrainingSpec
from memagent.wire.messages import AdviceItem

WORTH = 0.01
"""Savings below this share of the peak are not worth a line."""
RANKS = 8
"""Ranks that sharding is advised for where there is only one: a usual machine."""


@dataclass(frozen=True)
class Change:
    """`apply` gives the spec with the change made, or None where it is made already or makes no sense. `pain` orders the costs: 0 none."""

    name: str
    cost: str
    code: str
    pain: int
    apply: Callable[[TrainingSpec], TrainingSpec | None]


def advise(spec: TrainingSpec, limit_bytes: int | None = None, *, at_most: int = 12) -> list[AdviceItem]:
    """Ranked changes with their saving in bytes for this run, usual cost in speed, and the lines of code."""
    now = estimate_training(spec, limit_bytes=limit_bytes)
    ranked: list[tuple[tuple[bool, int, int], AdviceItem]] = []
    for change, changed in [*_applied(spec), *_smaller_batch(spec, now.limit_bytes)]:
        then = estimate_training(changed, limit_bytes=now.limit_bytes)
        saving = now.needed_bytes - then.needed_bytes
        if saving >= WORTH * now.needed_bytes:
            item = AdviceItem(change=change.name, saving_bytes=saving, cost=change.cost, code=change.code)
            ranked.append(((not _fits(then), change.pain, -saving), item))
    return [item for _, item in sorted(ranked, key=lambda pair: pair[0])][:at_most]


def _fits(found: Estimate) -> bool:
    return found.fits is True


def _applied(spec: TrainingSpec) -> Iterator[tuple[Change, TrainingSpec]]:
    for change in CHANGES:
        try:
            changed = change.apply(spec)
        except EstimateError:  # LoRA's usual targets may not be this family's
            continue
        if changed is not None:
            yield change, changed


def _smaller_batch(spec: TrainingSpec, limit_bytes: int | None) -> Iterator[tuple[Change, TrainingSpec]]:
    """The largest divisor of the batch that fits, with accumulation making up for it; half of it where none does."""
    if spec.batch == 1:
        return
    fitting = 0
    if limit_bytes is not None:
        try:
            fitting = largest_batch(replace(spec, accumulation=max(2, spec.accumulation)), limit_bytes)
        except EstimateError:
            return
    divisors = [size for size in range(1, spec.batch) if spec.batch % size == 0]
    smaller = max((size for size in divisors if size <= fitting), default=divisors[-1])
    steps = spec.batch // smaller
    code = f"TrainingArguments(per_device_train_batch_size={smaller}, gradient_accumulation_steps={steps * spec.accumulation})"
    change = Change(
        f"A batch of {smaller} with {steps} times the accumulation", "the same work in smaller pieces: 0 to 20 % slower", code, 2, _none
    )  # fmt: skip
    yield change, replace(spec, batch=smaller, accumulation=spec.accumulation * steps)


def _none(_: TrainingSpec) -> None:
    return None


def _when(condition: bool, changed: Callable[[], TrainingSpec]) -> TrainingSpec | None:
    return changed() if condition else None


def _lora(spec: TrainingSpec, quantised: str | None) -> TrainingSpec | None:
    if (spec.lora_rank is not None and quantised is None) or spec.quantised is not None:
        return None
    roles = {m.role: m.name for m in matrices(spec.model) if m.layered and m.kind == "linear"}
    targets = tuple(dict.fromkeys(roles[role] for role in ("q", "k", "v", "qkv", "o") if role in roles))
    precision = spec.precision if spec.precision in ("bf16", "fp16", "amp") else "bf16"
    return replace(
        spec, precision="bf16" if precision == "amp" else precision, lora_rank=spec.lora_rank or 16,
        lora_targets=spec.lora_targets if spec.lora_rank else targets, quantised=quantised,
    )  # fmt: skip


def _sharded(spec: TrainingSpec, stage: int) -> TrainingSpec | None:
    plan = spec.parallel
    if plan.zero >= stage:
        return None
    return replace(spec, parallel=replace(plan, data=plan.data if plan.data > 1 else RANKS, zero=stage))


def _optimizer(spec: TrainingSpec, wanted: str) -> TrainingSpec | None:
    adams = ("adam", "adamw", "nadam", "radam", "amsgrad")
    return _when(spec.optimizer.lower() in adams, lambda: replace(spec, optimizer=wanted))


def _one_rank(plan: Parallel) -> bool:
    return plan.data * plan.tensor * plan.pipeline == 1


CHANGES = (
    Change(
        "Free gradients between steps", "none", "optimizer.zero_grad(set_to_none=True)", 0,
        lambda s: _when(not s.set_to_none and s.accumulation == 1, lambda: replace(s, set_to_none=True)),
    ),
    Change(
        "Attention by SDPA or FlashAttention", "faster", 'model = AutoModel.from_pretrained(name, attn_implementation="sdpa")', 0,
        lambda s: _when(s.attention != "sdpa", lambda: replace(s, attention="sdpa")),
    ),
    Change(
        "No key-value cache in training", "none", "model.config.use_cache = False", 0,
        lambda s: _when(s.use_cache, lambda: replace(s, use_cache=False)),
    ),
    Change(
        "A fused optimizer step", "faster", "torch.optim.AdamW(model.parameters(), lr=lr, fused=True)", 0,
        lambda s: _when(s.step_implementation == "foreach" and not s.rule.always_single, lambda: replace(s, implementation="fused")),
    ),
    Change(
        "Autocast to bf16",
        "faster on GPUs with bf16", 'with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = model(**batch).loss', 0,
        lambda s: _when(s.precision == "fp32", lambda: replace(s, precision="amp")),
    ),
    Change(
        "Weights, gradients and states in bf16", "faster; small updates are rounded away",
        "model = AutoModel.from_pretrained(name, dtype=torch.bfloat16)", 1,
        lambda s: _when(s.precision in ("fp32", "amp", "mixed"), lambda: replace(s, precision="bf16")),
    ),
    Change(
        "Loss in chunks", "0 to 5 % slower, with a fused kernel faster",
        "model = AutoLigerKernelForCausalLM.from_pretrained(name)  # or cut_cross_entropy", 1,
        lambda s: _when(s.loss == "eager" and s.model.kind_of_head == "lm", lambda: replace(s, loss="chunked")),
    ),
    Change(
        "8-bit Adam", "0 to 10 % slower steps of the optimizer", "optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=lr)", 1,
        lambda s: _optimizer(s, "adamw8bit"),
    ),
    Change(
        "Adafactor",
        "about as fast; its learning rates differ", "optimizer = Adafactor(model.parameters(), scale_parameter=False, lr=lr)", 2,
        lambda s: _optimizer(s, "adafactor"),
    ),
    Change(
        "Activation checkpointing", "20 to 35 % slower", 'model.gradient_checkpointing_enable({"use_reentrant": False})', 3,
        lambda s: _when(s.checkpointing != "full", lambda: replace(s, checkpointing="full", checkpoint_every=1)),
    ),
    Change(
        "LoRA of rank 16", "faster; only adapters are trained", "model = get_peft_model(model, LoraConfig(r=16))", 4,
        lambda s: _lora(s, None),
    ),
    Change(
        "QLoRA: NF4 weights with LoRA", "30 to 60 % slower than LoRA",
        'BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,\n'
        "                   bnb_4bit_compute_dtype=torch.bfloat16)", 5,
        lambda s: _lora(s, "nf4-double"),
    ),
    Change(
        f"ZeRO-1 over {RANKS} ranks or those there are", "needs more GPUs; little communication",
        '{"zero_optimization": {"stage": 1}}', 6, lambda s: _sharded(s, 1),
    ),
    Change(
        f"ZeRO-2 over {RANKS} ranks or those there are", "needs more GPUs; little communication",
        '{"zero_optimization": {"stage": 2}}', 6, lambda s: _sharded(s, 2),
    ),
    Change(
        f"FSDP (ZeRO-3) over {RANKS} ranks or those there are", "needs more GPUs; half as much communication again",
        "for layer in model.layers:\n    fully_shard(layer)\nfully_shard(model)", 6, lambda s: _sharded(s, 3),
    ),
    Change(
        "Optimizer states on the host",
        "1.2 to 3 times slower", '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}', 7,
        lambda s: _when(not s.offload_optimizer, lambda: replace(s, offload_optimizer=True)),
    ),
    Change(
        "Parameters and optimizer states on the host", "several times slower",
        '{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}}', 8,
        lambda s: _when(
            not s.offload_parameters and _one_rank(s.parallel), lambda: replace(s, offload_parameters=True, offload_optimizer=True)
        ),
    ),
)  # fmt: skip
