"""What a training step will need, before it runs, on one GPU of those that share it. A model's name is reckoned by formula, without torch;
a Hugging Face config.json is traced with the class of the installed transformers, or reckoned where there is none; a `path.py:factory` is
traced. Tracing runs the step on fake tensors: no GPU, no weights, nothing computed."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from memagent.cli.estimate_view import Style, screen, table
from memagent.cli.progress import Progress
from memagent.errors import EstimateError, SettingError, TraceError
from memagent.estimator.devices import GPUS, context_of
from memagent.estimator.engine import Subject, by_formula, by_trace, grid, largest, of_question
from memagent.estimator.estimate import Estimate
from memagent.estimator.formula.parallel import Parallel
from memagent.estimator.formula.presets import preset
from memagent.estimator.formula.shapes import ModelShape
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.huggingface import from_config
from memagent.units import format_bytes, parse_bytes

_FACTORY = re.compile(r"(?P<path>.+\.py):\w+")
_INPUT = re.compile(r"(?:(?P<name>\w+)=)?(?P<shape>\d+(?:x\d+)*)(?::(?P<dtype>\w+))?")
_OLD_SWEEP = re.compile(r"(?P<batch>[\d,]+)(?:x(?P<seq>[\d,]+))?")
_FORMULA_ONLY = (
    "checkpoint_every",
    "loss",
    "quantised",
    "offload",
    "zero",
    "ranks",
    "tensor",
    "sequence_parallel",
    "pipeline",
    "step",
)
"""Options of which a traced config.json knows nothing but the default."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("the model")
    model.add_argument(
        "--model",
        required=True,
        help="a name (gpt2-xl, llama-7b), a config.json, or path.py:factory",
    )
    model.add_argument("--batch", type=int, help="samples in one forward; default 1")
    model.add_argument("--seq", type=int, help="tokens a sample; default the model's own length")
    model.add_argument(
        "--input",
        action="append",
        metavar="[NAME=]8x1024[:int64]",
        help="what path.py:factory is called with",
    )
    model.add_argument(
        "--method",
        choices=("formula", "trace"),
        help="of a config.json; default: traced where it can be",
    )
    _add_training(parser.add_argument_group("the training"))
    many = parser.add_argument_group("many GPUs (one of them is estimated)")
    many.add_argument(
        "--zero", type=int, choices=(0, 1, 2, 3), default=0, help="ZeRO stage; 3 is FSDP"
    )
    many.add_argument("--ranks", type=int, default=1, help="GPUs that share the batch")
    many.add_argument("--tensor", type=int, default=1, help="GPUs that share each matrix")
    many.add_argument(
        "--sequence-parallel",
        action="store_true",
        help="norms and dropout are split over --tensor too",
    )
    many.add_argument("--pipeline", type=int, default=1, help="stages that share the layers")
    device = parser.add_argument_group("the device")
    device.add_argument("--gpu", help=f"memory such as 24GiB, or a card: {', '.join(GPUS)}")
    device.add_argument(
        "--context", metavar="SIZE", help="what the process holds besides; default what is usual"
    )
    asked = parser.add_argument_group("what is asked")
    asked.add_argument(
        "--max-batch", action="store_true", help="find the largest batch that fits --gpu"
    )
    asked.add_argument(
        "--sweep",
        nargs="*",
        metavar="batch=1,2,4 seq=512,1024",
        help="a table over batches and sequences; alone, over batches of 1 to 16",
    )
    asked.add_argument(
        "--advice", action="store_true", help="all that would save memory here, with lines of code"
    )
    asked.add_argument("--json", action="store_true", help="print one JSON document")


def _add_training(training: Any) -> None:
    training.add_argument(
        "--dtype",
        help="fp32, amp (bf16 autocast: the default), bf16 (with --lora), mixed (with --zero), fp16, fp8",
    )
    training.add_argument(
        "--optimizer",
        default="adamw",
        help="adamw (default), sgd, adamw8bit, adafactor, lion, muon, ...",
    )
    training.add_argument(
        "--step",
        choices=("foreach", "fused", "single"),
        help="how the optimizer steps; default as torch",
    )
    training.add_argument("--checkpointing", choices=("none", "full", "selective"), default="none")
    training.add_argument(
        "--checkpoint-every", type=int, default=1, metavar="N", help="only every N-th layer"
    )
    training.add_argument("--attention", choices=("sdpa", "math", "eager"), default="sdpa")
    training.add_argument(
        "--loss", choices=("eager", "inplace", "chunked", "fused"), default="eager"
    )
    training.add_argument(
        "--accumulate", type=int, default=1, help="forwards for one optimizer step"
    )
    training.add_argument(
        "--lora", type=int, metavar="RANK", help="train adapters of this rank only"
    )
    training.add_argument("--lora-targets", help="names with commas between, or all-linear")
    training.add_argument(
        "--quantised", help="hold the frozen weights as int8, int4, nf4 or nf4-double (with --lora)"
    )
    training.add_argument(
        "--offload", choices=("none", "optimizer", "parameters"), default="none", help="to the host"
    )


def run(arguments: argparse.Namespace) -> int:
    try:
        return _answer(_subject(arguments), arguments)
    except TraceError:
        raise
    except EstimateError as error:  # of what was asked: bad usage
        raise SettingError(str(error)) from error


def _answer(subject: Subject, arguments: argparse.Namespace) -> int:
    ink = Style(sys.stdout.isatty() and "NO_COLOR" not in os.environ)
    with Progress() as progress:
        if arguments.sweep is not None:
            return _swept(subject, arguments, ink, progress)
        if arguments.max_batch:
            return _largest(subject, arguments, ink, progress)
        progress.tell("tracing" if subject.is_traced else "")
        found = (
            subject.advised() if arguments.advice or not subject.is_traced else subject.estimate()
        )
        progress.tell("")
        _print(found, arguments, ink)
        if (
            subject.is_traced
            and found.fits is False
            and not arguments.advice
            and not arguments.json
        ):
            print(ink.dim("--advice tries what would make it fit."))
    return 0


def _subject(arguments: argparse.Namespace) -> Subject:
    factory = _FACTORY.fullmatch(arguments.model)
    if factory is not None:
        return _of_factory(arguments, Path(factory["path"]))
    if arguments.input:
        raise SettingError(
            "--input is for path.py:factory: a model by name takes --batch and --seq"
        )
    config = _config(arguments.model)
    if config is not None and _is_traced(arguments):
        try:
            return _of_config(arguments, config)
        except EstimateError:
            if arguments.method == "trace":
                raise  # else: the installed transformers has no such model, but the formula may know it
    if arguments.method == "trace":
        raise SettingError(
            f"{arguments.model} is known by its shape only: give its config.json, or path.py:factory, to trace it"
        )
    limit, context = _limit(arguments), _context(arguments)
    if context is None and limit is not None and _card(arguments) is None:
        context = context_of(None).size_bytes  # memory alone was said: of some GPU
    shape = (
        preset(arguments.model)
        if config is None
        else from_config(config, name=_name(arguments.model))
    )
    return by_formula(_spec(arguments, shape), limit_bytes=limit, context_bytes=context)


def _is_traced(arguments: argparse.Namespace) -> bool:
    """Whether a config.json is traced: as it was said, else where all that is asked can be."""
    others = {
        name
        for name in _FORMULA_ONLY
        if getattr(arguments, name) not in (None, "none", "eager", 0, 1, False)
    }
    others |= {"dtype"} if arguments.dtype not in (None, "fp32", "amp", "bf16", "fp16") else set()
    others |= {"checkpointing"} if arguments.checkpointing == "selective" else set()
    others |= {"attention"} if arguments.attention == "math" else set()
    others |= (
        {"optimizer"}
        if "8bit" in arguments.optimizer or arguments.optimizer in ("paged_adamw", "lion")
        else set()
    )
    if arguments.method == "trace" and others:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(others))
        raise SettingError(
            f"a trace of a config.json does not know what {options} says: leave it out, or --method formula"
        )
    can_be = not others and find_spec("torch") is not None and find_spec("transformers") is not None
    return arguments.method == "trace" or (arguments.method is None and can_be)


def _of_config(arguments: argparse.Namespace, config: dict[str, Any]) -> Subject:
    from memagent.estimator.traced_config import question_for_config

    targets = arguments.lora_targets
    fixed = {
        "precision": _precision(arguments),
        "optimizer": arguments.optimizer,
        "attention": arguments.attention,
        "checkpointing": "non_reentrant" if arguments.checkpointing == "full" else None,
        "accumulate": arguments.accumulate,
        "lora_rank": arguments.lora,
        "lora_targets": targets if targets in (None, "all-linear") else targets.split(","),
        **_device(arguments),
    }

    def question_for(batch: int, sequence: int | None) -> Any:
        return question_for_config(config, batch=batch, sequence=sequence, **fixed)

    return by_trace(question_for, batch=arguments.batch or 1, sequence=arguments.seq)


def _of_factory(arguments: argparse.Namespace, path: Path) -> Subject:
    from memagent.estimator.request import EstimateRequest

    if not path.is_file():
        raise SettingError(
            f"{path} is not there: --model path.py:factory names a file and a function in it"
        )
    if not arguments.input:
        raise SettingError(
            f"what is {arguments.model} called with? Give --input, such as --input 8x1024:int64"
        )
    if arguments.batch or arguments.seq:
        raise SettingError(
            "--batch and --seq are for models by name or config.json: a factory's are in --input"
        )
    return of_question(
        EstimateRequest(
            model=arguments.model,
            inputs=_inputs(arguments.input),
            optimizer=arguments.optimizer,
            autocast={None: None, "amp": "bf16", "bf16": "bf16", "fp16": "fp16"}.get(
                arguments.dtype
            ),
            checkpointing="full" if arguments.checkpointing == "full" else None,
            accumulate=arguments.accumulate,
            **_device(arguments),
        )
    )


def _device(arguments: argparse.Namespace) -> dict[str, Any]:
    from memagent.estimator.api import on_device

    card = _card(arguments)
    return on_device(
        gpu=card, limit_bytes=None if card else _limit(arguments), context_bytes=_context(arguments)
    )


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


def _spec(arguments: argparse.Namespace, shape: ModelShape) -> TrainingSpec:
    if arguments.lora is None and (arguments.quantised or arguments.lora_targets):
        raise SettingError("--quantised and --lora-targets go with --lora RANK")
    adapters: dict[str, Any] = {}
    if arguments.lora is not None:
        adapters = {
            "lora_rank": arguments.lora,
            "lora_targets": _targets(arguments, shape),
            "quantised": arguments.quantised,
        }
    return TrainingSpec(
        model=shape,
        batch=1 if arguments.batch is None else arguments.batch,
        sequence=arguments.seq,
        precision=_precision(arguments),
        optimizer=arguments.optimizer,
        implementation=arguments.step,
        checkpointing=arguments.checkpointing,
        checkpoint_every=arguments.checkpoint_every,
        attention=arguments.attention,
        loss=arguments.loss,
        accumulation=arguments.accumulate,
        parallel=Parallel(
            data=arguments.ranks, zero=arguments.zero, tensor=arguments.tensor, sequence=arguments.sequence_parallel,
            pipeline=arguments.pipeline,
        ),
        offload_optimizer=arguments.offload != "none",
        offload_parameters=arguments.offload == "parameters",
        gpu=_card(arguments),
        **adapters,
    )  # fmt: skip


def _precision(arguments: argparse.Namespace) -> str:
    """As said; else what is usual: frozen weights are loaded in bf16, and ZeRO's masters are fp32."""
    return str(
        arguments.dtype or ("bf16" if arguments.lora else "mixed" if arguments.zero else "amp")
    )


def _targets(arguments: argparse.Namespace, shape: ModelShape) -> tuple[str, ...]:
    from memagent.estimator.advice.script_facts import lora_targets

    return (
        tuple(arguments.lora_targets.split(","))
        if arguments.lora_targets
        else lora_targets(TrainingSpec(shape))
    )


def _config(model: str) -> dict[str, Any] | None:
    """The content of a config.json, given as the file or its folder; None for a model's name."""
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    if path.suffix != ".json":
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be read as a config.json: {error}") from error
    if not isinstance(content, dict):
        raise SettingError(
            f"{path} holds no object: is it the config.json of a Hugging Face model?"
        )
    return content


def _name(model: str) -> str:
    path = Path(model)
    return path.name if path.is_dir() else path.parent.name or path.name


def _card(arguments: argparse.Namespace) -> str | None:
    name = (arguments.gpu or "").lower()
    return name if name in GPUS else None


def _limit(arguments: argparse.Namespace) -> int | None:
    card = _card(arguments)
    if arguments.gpu is None or card:
        return GPUS[card].total_bytes if card else None
    try:
        return parse_bytes(arguments.gpu)
    except SettingError as error:
        raise SettingError(
            f"--gpu {arguments.gpu} is no card that is known ({', '.join(GPUS)}), and {error}"
        ) from error


def _context(arguments: argparse.Namespace) -> int | None:
    """As given; None for what is usual."""
    return None if arguments.context is None else parse_bytes(arguments.context)


_SWEEP = "batch=1,2,4,8,16"
"""Where --sweep is given alone; the sequence is then that of the model, or --seq's."""


def _swept(subject: Subject, arguments: argparse.Namespace, ink: Style, progress: Progress) -> int:
    asked = _sweep(arguments.sweep or [_SWEEP])
    batches, sequences = asked.get("batch", ()), asked.get("seq", ())

    def advance(done: int, total: int) -> None:
        progress.advance(done, total, f"{done + 1} of {total} estimates")

    cells = list(grid(subject, batches=batches, sequences=sequences, advance=advance))
    progress.tell("")
    if arguments.json:
        rows = [
            {"batch": cell.batch, "sequence": cell.sequence, **cell.estimate.to_dict()}
            for cell in cells
        ]
        print(json.dumps(rows, indent=2))
    else:
        print("\n".join(table(cells, subject.limit_bytes, ink=ink)))
    return 0


def _sweep(parts: Sequence[str]) -> dict[str, list[int]]:
    """`batch=1,2,4 seq=512,1024`, or in short `1,2,4x512,1024`."""
    short = _OLD_SWEEP.fullmatch(parts[0]) if len(parts) == 1 else None
    named = [part.partition("=") for part in parts] if short is None else []
    pairs = (
        [(key, values) for key, _, values in named]
        if short is None
        else list(short.groupdict().items())
    )
    try:
        found = {
            key: [int(number) for number in values.split(",")]
            for key, values in pairs
            if values is not None
        }
    except ValueError:
        found = {}
    if (
        not found
        or set(found) - {"batch", "seq"}
        or min(min(numbers) for numbers in found.values()) < 1
    ):
        raise SettingError(
            f"--sweep {' '.join(parts)} is not a table: write it as in --sweep batch=1,2,4 seq=512,1024"
        )
    return found


def _largest(
    subject: Subject, arguments: argparse.Namespace, ink: Style, progress: Progress
) -> int:
    answer = largest(subject, tell=progress.tell)
    progress.tell("")
    limit = format_bytes(subject.limit_bytes)
    if arguments.json:
        estimate = answer.estimate.to_dict() if answer.estimate else None
        found = {
            "batch": answer.batch,
            "sure_batch": answer.sure_batch,
            "limit_bytes": subject.limit_bytes,
        }
        print(json.dumps({**found, "estimate": estimate}, indent=2))
    elif answer.estimate is not None:
        print("\n".join(screen(answer.estimate, ink=ink, title=_title(arguments, answer.batch))))
        sure = f"; to be sure of it take {answer.sure_batch}" if answer.sure_batch else ""
        print(ink.bold(f"batch {answer.batch} fits in {limit}, {answer.too_large} does not{sure}"))
    else:
        print(
            f"not even a batch of 1 fits in {limit}; without --max-batch you are told what would help"
        )
    return 0 if answer.batch else 1


def _print(found: Estimate, arguments: argparse.Namespace, ink: Style) -> None:
    if arguments.json:
        print(json.dumps(found.to_dict(), indent=2))
        return
    title = _title(arguments, arguments.batch or 1)
    print("\n".join(screen(found, ink=ink, title=title, everything=arguments.advice)))


def _title(arguments: argparse.Namespace, batch: int) -> str:
    """What is estimated, for whom: a model by its name or file, its input, its card."""
    model = arguments.model
    name = model if _FACTORY.fullmatch(model) or _config(model) is None else _name(model)
    if arguments.input:
        of_size = f"inputs {' '.join(arguments.input)}" + (
            f", batch {batch}" if arguments.max_batch else ""
        )
    else:
        of_size = f"batch {batch}" + (f" x {arguments.seq:,} tokens" if arguments.seq else "")
    return f"{name}, {of_size}" + (f", on {arguments.gpu}" if arguments.gpu else "")
