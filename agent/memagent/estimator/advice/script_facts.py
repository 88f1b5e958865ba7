"""What the user's script uses, as far as the lines of code to add depend on it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from memagent.estimator.formula.shapes import matrices
from memagent.estimator.formula.spec import TrainingSpec

_IN_A_LIST = re.compile(r"(?:(?P<path>.+?)\.)??(?P<number>\d+)\.")
_ATTENTION = (
    "q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "c_attn", "query_key_value", "query", "key", "value", "q", "k", "v", "o", "qkv",
)  # fmt: skip
_TORCH_NAMES = {
    "adam": "Adam", "adamw": "AdamW", "nadam": "NAdam", "radam": "RAdam", "amsgrad": "AdamW", "adamax": "Adamax", "sgd": "SGD",
    "momentum": "SGD", "rmsprop": "RMSprop", "adagrad": "Adagrad", "adafactor": "Adafactor", "lbfgs": "LBFGS", "muon": "Muon",
}  # fmt: skip
_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
"""Optimizers of torch.optim that have a fused step on CUDA."""


@dataclass(frozen=True)
class Script:
    """`transformers`: the model is one of that library's. `optimizer` is a class of torch.optim, `blocks` an expression for the repeated
    blocks ("" where there are none), `targets` the names of the linear layers that LoRA would adapt."""

    transformers: bool = False
    optimizer: str = "AdamW"
    blocks: str = ""
    targets: tuple[str, ...] = ()

    @property
    def has_fused_step(self) -> bool:
        return self.optimizer in _FUSED


_BLOCKS = {
    "gpt2": "transformer.h", "gpt_bigcode": "transformer.h", "gpt_neox": "gpt_neox.layers", "bert": "bert.encoder.layer",
    "t5": "encoder.block", "vit": "vit.encoder.layer",
}  # fmt: skip


def script_of_spec(spec: TrainingSpec) -> Script:
    """A model that is known by name or config.json is one of transformers'."""
    shape = spec.model
    blocks = (
        "" if shape.parameters is not None else "model." + _BLOCKS.get(shape.family, "model.layers")
    )
    return Script(
        shape.parameters is None,
        _TORCH_NAMES.get(spec.optimizer.lower(), "AdamW"),
        blocks,
        lora_targets(spec),
    )


def lora_targets(spec: TrainingSpec) -> tuple[str, ...]:
    """Attention's linear layers, by the names that this family gives them."""
    roles = {m.role: m.name for m in matrices(spec.model) if m.layered and m.kind == "linear"}
    return tuple(
        dict.fromkeys(roles[role] for role in ("q", "k", "v", "qkv", "o") if role in roles)
    )


def script_of_trace(trace: Any) -> Script:
    """Read off a `Trace`: parameters by name, and the files that the step ran through."""
    weights = [
        event for event in trace.events if event.component == "parameters" and event.kind == "alloc"
    ]
    path = block_path(weights)
    names = dict.fromkeys(
        event.module.split(".")[-2]
        for event in weights
        if in_block(event, path) and len(event.shape) == 2
    )
    named = tuple(
        name for name in names if not name.isdigit()
    )  # a Sequential's layers have no names of their own
    attention = tuple(name for name in named if name in _ATTENTION)
    return Script(
        transformers=any(event.source.startswith("modeling_") for event in trace.events),
        optimizer=trace.optimizer or "AdamW",
        blocks="" if path is None else f"model.{path}".rstrip("."),
        targets=attention or named,
    )


def block_path(weights: Iterable[Any]) -> str | None:
    """The list of modules that holds most of the parameters' bytes, such as "transformer.h"; "" for the model itself, None for none."""
    bytes_in: Counter[str] = Counter()
    for event in weights:
        found = _IN_A_LIST.match(event.module)
        if found is not None:
            bytes_in[found["path"] or ""] += event.size_bytes
    return bytes_in.most_common(1)[0][0] if bytes_in else None


def in_block(event: Any, path: str | None) -> bool:
    """Whether a parameter's event belongs to a repeated block at `path`."""
    return block_of(event, path) is not None


def block_of(event: Any, path: str | None) -> str | None:
    """The number of the block that a parameter belongs to."""
    found = _IN_A_LIST.match(event.module)
    return (
        found["number"]
        if found is not None and path is not None and (found["path"] or "") == path
        else None
    )


@lru_cache(maxsize=1)
def checkpointing_method() -> str:
    """What transformers calls it in the version that is installed; where none is, in today's.

    `gradient_checkpointing_enable` is deprecated in transformers 5 and goes with 6. The source is read: importing it takes seconds.
    """
    today, before = "activation_checkpointing_enable", "gradient_checkpointing_enable"
    found = find_spec("transformers")
    if found is None or found.origin is None:
        return today
    try:
        source = (Path(found.origin).parent / "modeling_utils.py").read_text(
            encoding="utf-8", errors="replace"
        )
    except OSError:
        return today
    return today if f"def {today}" in source else before
