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

from memagent.cli.device_options import context_bytes_of, limit_bytes_of
from memagent.errors import EstimateError, SettingError
from memagent.estimator.bounds import INPUT_LIMIT, TIME_LIMIT_S, check_size
from memagent.estimator.formula.optimizers import TORCH_OPTIMIZERS, optimizer_named
from memagent.estimator.formula.precision import precision_named, quantised_bytes
from memagent.estimator.formula.releases import release_of

SIZES = (
    "batch",
    "sequence",
    "image_size",
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
_OF_TRANSFORMERS = ("hub", "attention", "lora_rank", "lora_targets", "quantised", "kbit_training")
"""Options that change a model of transformers; the code of any other decides them."""
_OF_ADAPTERS = ("quantised", "kbit_training", "lora_targets")
"""Options that have a meaning with adapters only."""
_USUAL = {
    "attention": "sdpa",
    "loss": "eager",
    "offload": "none",
    "checkpoint_every": 1,
    "zero": 0,
    "ranks": 1,
    "tensor": 1,
    "pipeline": 1,
    "sequence_parallel": False,
    "hub": False,
}
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
    if not 0 < arguments.timeout <= TIME_LIMIT_S:  # nan, too
        raise SettingError(
            f"--timeout is {arguments.timeout:g}: give more than 0 seconds, and at most "
            f"{TIME_LIMIT_S:g}"
        )
    if not arguments.model.strip():
        raise SettingError("--model is empty: give a name, a config.json or path.py:factory")
    if arguments.lora_targets is not None and not arguments.lora_targets.strip(", "):
        raise SettingError("--lora-targets is empty: name layers, such as q_proj,v_proj")
    targets = names_of(arguments.lora_targets or "")
    if "all-linear" in targets and len(targets) > 1:
        raise SettingError("--lora-targets all-linear has all layers: leave out the others")
    _check_names(arguments)
    _check_combinations(arguments)
    limit_bytes_of(arguments), context_bytes_of(arguments)


def _check_names(arguments: argparse.Namespace) -> None:
    """Raise EstimateError for a name that neither a trace nor the formula knows."""
    if arguments.precision is not None:
        precision_named(arguments.precision)
    if arguments.optimizer.lower() not in TORCH_OPTIMIZERS:
        optimizer_named(arguments.optimizer)
    if arguments.quantised is not None:
        quantised_bytes(arguments.quantised)
    if arguments.transformers is not None:
        release_of(arguments.transformers)


def _check_combinations(arguments: argparse.Namespace) -> None:
    """Raise SettingError for an option without the one that gives it a meaning."""
    if arguments.fsdp_wrap and not (arguments.lora_rank and arguments.zero == 3):
        raise SettingError("--fsdp-wrap has a meaning with --lora-rank and --zero 3 only")
    adapters = next((name for name in _OF_ADAPTERS if is_given(arguments, name)), None)
    if adapters and arguments.lora_rank is None:
        raise SettingError(f"{flag_of(adapters)} needs --lora-rank RANK")
    if arguments.kbit_training and arguments.quantised is None:
        raise SettingError("--kbit-training needs --quantised: int8, nf4 or nf4-double")
    if arguments.zero and arguments.ranks == 1:
        raise SettingError(f"--zero {arguments.zero} shares among --ranks: give 2 or more")
    if arguments.sequence_parallel and arguments.tensor == 1:
        raise SettingError("--sequence-parallel shares among --tensor: give 2 or more")
    if is_given(arguments, "checkpoint_every") and arguments.checkpointing == "none":
        raise SettingError("--checkpoint-every needs --checkpointing full or selective")


def check_factory(arguments: argparse.Namespace) -> None:
    """Raise SettingError for options that a step of path.py:factory would leave out."""
    if arguments.batch or arguments.sequence:
        raise SettingError(
            "--batch and --sequence are for models by name or config.json: a factory's are in "
            "--input"
        )
    unused = [
        flag_of(name)
        for name in (*FORMULA_ONLY, *_OF_TRANSFORMERS, "image_size")
        if is_given(arguments, name)
    ]
    if arguments.method == "formula":
        unused.append("--method formula")
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


def check_classifier(arguments: argparse.Namespace, library: str) -> None:
    """Raise SettingError for options that change a model of transformers only."""
    names = ("sequence", *_OF_TRANSFORMERS)
    unused = [flag_of(name) for name in names if is_given(arguments, name)]
    if unused:
        raise SettingError(
            f"{', '.join(unused)}: {arguments.model} is a classifier of {library}, so leave it out"
        )


def inputs_of(texts: Sequence[str]) -> Any:
    """Parse shapes and dtypes, as positional arguments or by name."""
    inputs = [_input(text) for text in texts]
    if all(name is None for name, _ in inputs):
        return tuple(spec for _, spec in inputs)
    names = [name for name, _ in inputs]
    if None in names:
        raise SettingError("--input: give all inputs a name, or none")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SettingError(f"--input {twice} is given twice: give it once")
    return dict(inputs)


def _input(text: str) -> tuple[str | None, Any]:
    match = _INPUT.fullmatch(text)
    if match is None:
        raise SettingError(
            f"--input {text!r} is not [NAME=]SHAPE[:DTYPE], such as 8x1024:int64 or "
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


def names_of(text: str) -> tuple[str, ...]:
    """Return the names between commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def is_given(arguments: argparse.Namespace, name: str) -> bool:
    """Return True if an option has another value than its default."""
    value: object = getattr(arguments, name)
    return value != _USUAL.get(name)


def flag_of(name: str) -> str:
    """Return an option as it is typed."""
    return f"--{name.replace('_', '-')}"
