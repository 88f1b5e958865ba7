"""What a training step will need, before it runs. A model's name or its config.json is reckoned by formula, without torch; a
`path.py:factory` is traced on fake tensors, without a GPU."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from memagent.errors import SettingError
from memagent.estimator.changes import advise
from memagent.estimator.configs import from_config
from memagent.estimator.devices import GPUS
from memagent.estimator.estimate import LEVELS, Estimate
from memagent.estimator.formula import estimate_training
from memagent.estimator.parallel import Parallel
from memagent.estimator.presets import preset
from memagent.estimator.search import largest_batch, sweep
from memagent.estimator.shapes import ModelShape
from memagent.estimator.spec import TrainingSpec
from memagent.units import format_bytes, parse_bytes

_BAR = 40
_FACTORY = re.compile(r".+\.py:\w+")
_INPUT = re.compile(r"(?:(?P<name>\w+)=)?(?P<shape>\d+(?:x\d+)*)(?::(?P<dtype>\w+))?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="a name (gpt2-xl, llama-7b), a config.json, or path.py:factory")
    parser.add_argument("--batch", type=int, help="samples in one forward; default 1")
    parser.add_argument("--seq", type=int, help="tokens a sample; default the model's own length")
    parser.add_argument("--dtype", default=None, help="fp32, amp (bf16 autocast; default), bf16, mixed, fp8 and others")
    parser.add_argument(
        "--optimizer", default="adamw", help="adamw (default), sgd, adamw8bit, adafactor, lion, muon, ..."
    )
    parser.add_argument("--gpu", help=f"memory such as 24GiB, or a card: {', '.join(GPUS)}")
    parser.add_argument("--checkpointing", choices=("none", "full", "selective"), default="none")
    parser.add_argument("--attention", choices=("sdpa", "math", "eager"), default="sdpa")
    parser.add_argument("--loss", choices=("eager", "inplace", "chunked", "fused"), default="eager")
    parser.add_argument("--accumulate", type=int, default=1, help="forwards for one optimizer step")
    parser.add_argument("--lora", type=int, metavar="RANK", help="train adapters of this rank only")
    parser.add_argument("--lora-targets", help="names with commas between, or all-linear")
    parser.add_argument("--quantised", help="hold the frozen weights as int8, int4 or nf4 (with --lora)")
    parser.add_argument("--zero", type=int, choices=(0, 1, 2, 3), default=0, help="ZeRO stage; 3 is FSDP")
    parser.add_argument("--ranks", type=int, default=1, help="GPUs that share the batch")
    parser.add_argument("--tensor", type=int, default=1, help="GPUs that share each matrix")
    parser.add_argument("--pipeline", type=int, default=1, help="stages that share the layers")
    parser.add_argument(
        "--input", action="append", metavar="[NAME=]8x1024[:int64]", help="what path.py:factory is called with"
    )
    parser.add_argument("--max-batch", action="store_true", help="find the largest batch that fits --gpu")
    parser.add_argument("--sweep", metavar="1,2,4x512,1024", help="a table over batches and sequences")
    parser.add_argument("--advice", action="store_true", help="what would save memory, and how much of it here")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    if _FACTORY.fullmatch(arguments.model):
        return _traced(arguments)
    if arguments.input:
        raise SettingError("--input is for path.py:factory: a model by name takes --batch and --seq")
    spec, limit = _spec(arguments), _limit(arguments.gpu)
    if arguments.sweep:
        return _swept(spec, arguments.sweep, limit, as_json=arguments.json)
    if arguments.max_batch:
        return _largest(spec, limit, as_json=arguments.json)
    found = estimate_training(spec, limit_bytes=limit)
    if arguments.advice:
        found = replace(found, advice=tuple(advise(spec, limit)))
    _print(found, as_json=arguments.json)
    return 0


def _traced(arguments: argparse.Namespace) -> int:
    from memagent.estimator.asking import estimate

    if not arguments.input:
        raise SettingError(f"what is {arguments.model} called with? Give --input, such as --input 8x1024:int64")
    if arguments.sweep or arguments.max_batch:
        raise SettingError(
            "--sweep and --max-batch need a model by name or config.json: a factory's inputs are its own"
        )
    is_card = arguments.gpu in GPUS
    found = estimate(
        arguments.model,
        _inputs(arguments.input),
        optimizer=arguments.optimizer,
        autocast={None: None, "fp32": None, "amp": "bf16", "bf16": "bf16", "fp16": "fp16"}.get(arguments.dtype),
        checkpointing="full" if arguments.checkpointing == "full" else None,
        accumulate=arguments.accumulate,
        gpu=arguments.gpu if is_card else None,
        limit_bytes=None if is_card else _limit(arguments.gpu),
        advice=arguments.advice,
    )
    _print(found, as_json=arguments.json)
    return 0


def _inputs(texts: Sequence[str]) -> Any:
    """Shapes and dtypes, as positional arguments or by name."""
    found: list[tuple[str | None, Any]] = []
    for text in texts:
        match = _INPUT.fullmatch(text)
        if match is None:
            raise SettingError(
                f"--input {text} is not [NAME=]SHAPE[:DTYPE], such as 8x1024:int64 or labels=8x1024:int64"
            )
        shape = tuple(map(int, match["shape"].split("x")))
        found.append((match["name"], (shape, match["dtype"] or "float32")))
    if all(name is None for name, _ in found):
        return tuple(spec for _, spec in found)
    if any(name is None for name, _ in found):
        raise SettingError("--input: give all inputs a name, or none")
    return dict(found)


def _spec(arguments: argparse.Namespace) -> TrainingSpec:
    spec = TrainingSpec(
        model=_shape(arguments.model),
        batch=arguments.batch or 1,
        sequence=arguments.seq,
        precision=arguments.dtype or "amp",
        optimizer=arguments.optimizer,
        checkpointing=arguments.checkpointing,
        attention=arguments.attention,
        loss=arguments.loss,
        accumulation=arguments.accumulate,
        parallel=Parallel(
            data=arguments.ranks, zero=arguments.zero, tensor=arguments.tensor, pipeline=arguments.pipeline
        ),
        gpu=arguments.gpu if arguments.gpu in GPUS else None,
    )
    if arguments.lora is None:
        if arguments.quantised or arguments.lora_targets:
            raise SettingError("--quantised and --lora-targets go with --lora RANK")
        return spec
    changes: dict[str, Any] = {"lora_rank": arguments.lora, "quantised": arguments.quantised}
    if arguments.lora_targets:
        changes["lora_targets"] = tuple(arguments.lora_targets.split(","))
    return replace(spec, **changes)


def _shape(model: str) -> ModelShape:
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
    if path.suffix != ".json":
        return preset(model)
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be read as a config.json: {error}") from error
    return from_config(config, name=path.parent.name or path.name)


def _limit(gpu: str | None) -> int | None:
    if gpu is None:
        return None
    return GPUS[gpu].total_bytes if gpu in GPUS else parse_bytes(gpu)


def _swept(spec: TrainingSpec, text: str, limit: int | None, *, as_json: bool) -> int:
    batches, _, sequences = text.partition("x")
    try:
        points = list(
            sweep(
                spec, batches=_numbers(batches), sequences=_numbers(sequences) if sequences else (), limit_bytes=limit
            )
        )
    except ValueError as error:
        raise SettingError(f"--sweep {text} is not BATCHES or BATCHESxSEQUENCES, such as 1,2,4x512,1024") from error
    if as_json:
        rows = [{"batch": point.batch, "sequence": point.sequence, **point.estimate.to_dict()} for point in points]
        print(json.dumps(rows, indent=2))
        return 0
    columns = list(dict.fromkeys(point.batch for point in points))
    print("sequence" + "".join(f"{f'batch {batch}':>16}" for batch in columns))
    for sequence in dict.fromkeys(point.sequence for point in points):
        cells = [point.estimate for point in points if point.sequence == sequence]
        print(f"{sequence:>8}" + "".join(f"{_cell(found):>16}" for found in cells))
    return 0


def _cell(found: Estimate) -> str:
    return format_bytes(found.needed_bytes) + (" !" if found.fits is False else "  ")


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _largest(spec: TrainingSpec, limit: int | None, *, as_json: bool) -> int:
    if limit is None:
        raise SettingError("--max-batch needs --gpu: a card, or memory such as 24GiB")
    batch = largest_batch(spec, limit)
    if as_json:
        print(json.dumps({"batch": batch, "limit_bytes": limit}))
    elif batch:
        print(f"batch {batch} fits in {format_bytes(limit)}, {batch + 1} does not")
    else:
        print(f"not even a batch of 1 fits in {format_bytes(limit)}")
    return 0 if batch else 1


def _print(found: Estimate, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
        return
    widest = max(found.components.values(), default=0)
    for name, size in found.components.items():
        if size:
            print(f"{name:<16}{format_bytes(size):>11}  {'█' * max(1, round(_BAR * size / widest))}")
    levels = {
        "tensors' peak": found.peak_allocated_bytes,
        "reserved": found.peak_reserved_bytes,
        "on the device": found.peak_device_bytes,
    }
    for (level, peak), name in zip(levels.items(), LEVELS, strict=True):
        if peak is not None:
            low, high = found.intervals.get(name, (peak, peak))
            bounds = f"  ({format_bytes(low)} to {format_bytes(high)})" if low < high else ""
            print(f"{level:<16}{format_bytes(peak):>11}{bounds}")
    print(found.verdict())
    for note in _notes(found.assumptions):
        print(f"  {note}")
    for item in found.advice:
        print(f"- {item.change}: saves {format_bytes(item.saving_bytes)} ({item.cost})")
        for line in item.code.splitlines():
            print(f"    {line}")


def _notes(assumptions: dict[str, Any]) -> list[str]:
    notes = [str(note) for note in assumptions.get("notes", ())]
    return notes + ([str(assumptions["trace"])] if "trace" in assumptions else [])
