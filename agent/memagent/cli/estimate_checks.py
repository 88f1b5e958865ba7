"""Checks of `memagent estimate`'s options before anything is estimated or loaded.

No option is left out of an estimate in silence: one that has no meaning for the model is refused.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from memagent.errors import EstimateError, SettingError
from memagent.estimator.bounds import INPUT_LIMIT, check_size

SIZES = (
    "batch",
    "sequence",
    "accumulation",
    "checkpoint_every",
    "lora_rank",
    "ranks",
    "tensor",
    "pipeline",
)
FORMULA_ONLY = (
    "checkpoint_every",
    "loss",
    "offload",
    "zero",
    "ranks",
    "fsdp_wrap",
    "tensor",
    "sequence_parallel",
    "pipeline",
    "implementation",
    "transformers",
)
"""Options that no trace knows."""
_OF_NAMED_MODELS = ("hub", "attention", "lora_rank", "lora_targets", "quantised", "kbit_training")
"""Options that change a model by name or config.json; a factory's own code decides them."""
_USUAL = {"attention": "sdpa", "loss": "eager"}
_FACTORY_PRECISIONS = ("fp32", "amp", "bf16", "fp16")
_DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128"),
)
_INPUT = re.compile(r"(?:(?P<name>\w+)=)?(?P<shape>\d+(?:x\d+)*)(?::(?P<dtype>\w+))?")


def check_options(arguments: argparse.Namespace) -> None:
    """Raise SettingError for a size, a time or a combination that no step has."""
    for name in SIZES:
        try:
            check_size(name, getattr(arguments, name), label=flag_of(name))
        except EstimateError as error:
            raise SettingError(str(error)) from error
    if not arguments.timeout > 0:  # nan, too
        raise SettingError(f"--timeout is {arguments.timeout:g}: give more than 0 seconds")
    if not arguments.model.strip():
        raise SettingError("--model is empty: give a name, a config.json or path.py:factory")
    if arguments.lora_targets is not None and not arguments.lora_targets.strip(", "):
        raise SettingError("--lora-targets is empty: name layers, such as q_proj,v_proj")
    if arguments.fsdp_wrap and not (arguments.lora_rank and arguments.zero == 3):
        raise SettingError("--fsdp-wrap has a meaning with --lora-rank and --zero 3 only")


def check_factory(arguments: argparse.Namespace) -> None:
    """Raise SettingError for options that a step of path.py:factory would leave out."""
    if arguments.batch or arguments.sequence:
        raise SettingError(
            "--batch and --sequence are for models by name or config.json: a factory's are in "
            "--input"
        )
    unused = [
        flag_of(name)
        for name in (*FORMULA_ONLY, *_OF_NAMED_MODELS)
        if getattr(arguments, name) not in (_USUAL.get(name), None, "none", 0, 1, False)
    ]
    if arguments.checkpointing == "selective":
        unused.append("--checkpointing selective")
    if unused:
        raise SettingError(
            f"{', '.join(unused)}: a factory is traced as it is, so its own code decides that"
        )
    if arguments.precision not in (None, *_FACTORY_PRECISIONS):
        raise SettingError(
            f"--precision {arguments.precision}: a factory is traced with one of "
            f"{', '.join(_FACTORY_PRECISIONS)}"
        )


def inputs_of(texts: Sequence[str]) -> Any:
    """Parse shapes and dtypes, as positional arguments or by name."""
    inputs = [_input(text) for text in texts]
    if all(name is None for name, _ in inputs):
        return tuple(spec for _, spec in inputs)
    if any(name is None for name, _ in inputs):
        raise SettingError("--input: give all inputs a name, or none")
    return dict(inputs)


def _input(text: str) -> tuple[str | None, Any]:
    match = _INPUT.fullmatch(text)
    if match is None:
        raise SettingError(
            f"--input {text} is not [NAME=]SHAPE[:DTYPE], such as 8x1024:int64 or "
            "labels=8x1024:int64"
        )
    shape = tuple(map(int, match["shape"].split("x")))
    if not 1 <= math.prod(shape) <= INPUT_LIMIT:
        raise SettingError(f"--input {text}: give 1 to {INPUT_LIMIT} values")
    dtype = match["dtype"] or "float32"
    if dtype not in _DTYPES:
        near = get_close_matches(dtype, _DTYPES, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise SettingError(f"--input {text}: dtype {dtype} is not known{hint}")
    return match["name"], (shape, dtype)


def flag_of(name: str) -> str:
    """Return an option as it is typed."""
    return f"--{name.replace('_', '-')}"
