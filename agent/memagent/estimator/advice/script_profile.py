"""Facts about the user's script that the snippets depend on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from memagent.estimator.formula.shapes import matrices
from memagent.estimator.formula.spec import TrainingSpec

if TYPE_CHECKING:
    from memagent.estimator.trace.events import MemoryEvent, Trace

_LIST_ITEM = re.compile(r"(?:(?P<path>.+?)\.)??(?P<number>\d+)\.")
"""The outermost module list in a parameter's name, and the item's number."""
_ATTENTION_ROLES = ("q", "k", "v", "qkv", "o")
_ATTENTION_NAMES = (
    "q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "c_attn", "query_key_value",
    "query", "key", "value", *_ATTENTION_ROLES,
)  # fmt: skip
_TORCH_NAMES = {
    "adam": "Adam",
    "adamw": "AdamW",
    "nadam": "NAdam",
    "radam": "RAdam",
    "amsgrad": "AdamW",
    "adamax": "Adamax",
    "sgd": "SGD",
    "momentum": "SGD",
    "rmsprop": "RMSprop",
    "adagrad": "Adagrad",
    "adafactor": "Adafactor",
    "lbfgs": "LBFGS",
    "muon": "Muon",
}
_FUSED_OPTIMIZERS = ("Adam", "AdamW", "SGD", "Adagrad")
"""Optimizers of torch.optim with a fused step on CUDA."""
_BLOCKS = {
    "gpt2": "transformer.h",
    "gpt_bigcode": "transformer.h",
    "gpt_neox": "gpt_neox.layers",
    "bert": "bert.encoder.layer",
    "t5": "encoder.block",
    "vit": "vit.encoder.layer",
}


@dataclass(frozen=True)
class ScriptProfile:
    """`transformers`: the model is from that library. `optimizer` is a class of torch.optim.

    `blocks` is an expression for the repeated blocks ("" if there are none), `targets` the names of
    the linear layers that LoRA would adapt.
    """

    transformers: bool = False
    optimizer: str = "AdamW"
    blocks: str = ""
    targets: tuple[str, ...] = ()

    @property
    def has_fused_step(self) -> bool:
        return self.optimizer in _FUSED_OPTIMIZERS


def profile_of_spec(spec: TrainingSpec) -> ScriptProfile:
    """Assume that a model known by name or config.json is from transformers."""
    return ScriptProfile(
        transformers=True,
        optimizer=_TORCH_NAMES.get(spec.optimizer.lower(), "AdamW"),
        blocks="model." + _BLOCKS.get(spec.model.family, "model.layers"),
        targets=lora_targets(spec),
    )


def lora_targets(spec: TrainingSpec) -> tuple[str, ...]:
    """Return attention's linear layers by the names in this family."""
    names = {m.role: m.name for m in matrices(spec.model) if m.layered and m.kind == "linear"}
    return tuple(dict.fromkeys(names[role] for role in _ATTENTION_ROLES if role in names))


def profile_of_trace(trace: Trace) -> ScriptProfile:
    """Read the facts from parameters' names and the source files that the step ran through."""
    weights = weight_events(trace)
    path = block_path(weights)
    parents = dict.fromkeys(
        event.module.split(".")[-2]
        for event in weights
        if block_number(event, path) is not None and len(event.shape) == 2
    )
    # the layers of a Sequential have no names
    names = tuple(name for name in parents if not name.isdigit())
    attention = tuple(name for name in names if name in _ATTENTION_NAMES)
    return ScriptProfile(
        transformers=any(event.source.startswith("modeling_") for event in trace.events),
        optimizer=trace.optimizer or "AdamW",
        blocks="" if path is None else f"model.{path}".rstrip("."),
        targets=attention or names,
    )


def weight_events(trace: Trace) -> list[MemoryEvent]:
    """List the parameters' allocations."""
    return [e for e in trace.events if e.component == "parameters" and e.kind == "alloc"]


def block_path(weights: Iterable[MemoryEvent]) -> str | None:
    """Return the module list that holds most of the parameters' bytes, such as "transformer.h".

    "" is the model itself, None no list.
    """
    bytes_in: Counter[str] = Counter()
    for event in weights:
        match = _LIST_ITEM.match(event.module)
        if match is not None:
            bytes_in[match["path"] or ""] += event.size_bytes
    return bytes_in.most_common(1)[0][0] if bytes_in else None


def block_number(event: MemoryEvent, path: str | None) -> str | None:
    """Return the number of the block at `path` that a parameter belongs to; None for no block."""
    match = _LIST_ITEM.match(event.module)
    if match is None or path is None or (match["path"] or "") != path:
        return None
    return match["number"]


@lru_cache(maxsize=1)
def checkpointing_method() -> str:
    """Return the name of the method in the installed transformers, or its current name.

    `gradient_checkpointing_enable` is deprecated in transformers 5 and goes with 6. The source is
    read instead of imported, which would take seconds.
    """
    current, deprecated = "activation_checkpointing_enable", "gradient_checkpointing_enable"
    package = find_spec("transformers")
    if package is None or package.origin is None:
        return current
    try:
        path = Path(package.origin).parent / "modeling_utils.py"
        source = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return current
    return current if f"def {current}" in source else deprecated
