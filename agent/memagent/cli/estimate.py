"""`memagent estimate`: what a training step will need, before it runs, on one of its GPUs.

A model's name is estimated by formula, without torch. A Hugging Face config.json is traced with the
class of the installed transformers, or estimated by formula. A `path.py:factory` is traced. Tracing
runs the step on fake tensors: no GPU, no weights, no computation.
"""

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

from memagent.cli.estimate_view import Style, render, render_grid
from memagent.cli.progress import Progress
from memagent.errors import EstimateError, SettingError, TraceError
from memagent.estimator.devices import GPUS, context_of
from memagent.estimator.formula.presets import preset
from memagent.estimator.formula.shapes import ModelShape
from memagent.estimator.formula.spec import Parallel, TrainingSpec
from memagent.estimator.huggingface import from_config, read_config, request_for_config
from memagent.estimator.request import EstimateRequest, FormulaRequest, TraceRequest
from memagent.units import format_bytes, parse_bytes

_FACTORY = re.compile(r"(?P<path>.+\.py):\w+")
_INPUT = re.compile(r"(?:(?P<name>\w+)=)?(?P<shape>\d+(?:x\d+)*)(?::(?P<dtype>\w+))?")
_SHORT_SWEEP = re.compile(r"(?P<batch>[\d,]+)(?:x(?P<sequence>[\d,]+))?")
_DEFAULT_SWEEP = "batch=1,2,4,8,16"
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
    "implementation",
)
"""Options that a traced config.json supports with their defaults only."""
_TRACED_PRECISIONS = ("fp32", "amp", "bf16", "fp16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options; each has the name that Python and the HTTP API use, and older spellings."""
    model = parser.add_argument_group("the model")
    model.add_argument(
        "--model",
        required=True,
        help="a name (gpt2-xl, llama-7b), a config.json, or path.py:factory",
    )
    model.add_argument("--batch", type=int, help="samples in one forward; default 1")
    model.add_argument(
        "--sequence", "--seq", type=int, help="tokens a sample; default the model's own length"
    )
    model.add_argument(
        "--input",
        action="append",
        metavar="[NAME=]8x1024[:int64]",
        help="an argument of the model of path.py:factory",
    )
    model.add_argument(
        "--method",
        choices=("formula", "trace"),
        help="for a config.json; default: trace if possible",
    )
    _add_training(parser.add_argument_group("the training"))
    many = parser.add_argument_group("many GPUs (one of them is estimated)")
    many.add_argument(
        "--zero", type=int, choices=(0, 1, 2, 3), default=0, help="ZeRO stage; 3 is FSDP"
    )
    many.add_argument("--ranks", type=int, default=1, help="GPUs that share the batch")
    many.add_argument("--tensor", type=int, default=1, help="GPUs that share each matrix")
    many.add_argument(
        "--sequence-parallel", action="store_true", help="split norms and dropout over --tensor too"
    )
    many.add_argument("--pipeline", type=int, default=1, help="stages that share the layers")
    device = parser.add_argument_group("the device")
    device.add_argument("--gpu", help=f"memory such as 24GiB, or a card: {', '.join(GPUS)}")
    device.add_argument(
        "--context", metavar="SIZE", help="memory of the CUDA context; default: the usual size"
    )
    output = parser.add_argument_group("the output")
    output.add_argument(
        "--max-batch", action="store_true", help="find the largest batch that fits --gpu"
    )
    output.add_argument(
        "--sweep",
        nargs="*",
        metavar="batch=1,2,4 sequence=512,1024",
        help="a table over batches and sequences; without values: batches of 1 to 16",
    )
    output.add_argument(
        "--advice", action="store_true", help="list all changes that would save memory, with code"
    )
    output.add_argument("--json", action="store_true", help="print one JSON document")


def _add_training(training: Any) -> None:
    training.add_argument(
        "--precision",
        "--dtype",
        help="fp32, amp (bf16 autocast: the default), bf16 (default with --lora-rank), mixed "
        "(default with --zero), fp16, fp8",
    )
    training.add_argument(
        "--optimizer",
        default="adamw",
        help="adamw (default), sgd, adamw8bit, adafactor, lion, muon, ...",
    )
    training.add_argument(
        "--implementation",
        "--step",
        choices=("foreach", "fused", "single"),
        help="how the optimizer steps; default: as torch",
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
        "--accumulation",
        "--accumulate",
        type=int,
        default=1,
        metavar="N",
        help="forwards for one optimizer step",
    )
    training.add_argument(
        "--lora-rank", "--lora", type=int, metavar="RANK", help="train adapters of this rank only"
    )
    training.add_argument("--lora-targets", help="layer names separated by commas, or all-linear")
    training.add_argument(
        "--quantised",
        help="hold the frozen weights as int8, int4, nf4 or nf4-double (with --lora-rank)",
    )
    for name, help_text in (
        ("optimizer", "hold the optimizer's states on the host"),
        ("parameters", "hold parameters and states on the host"),
    ):
        training.add_argument(
            f"--offload-{name}",
            dest="offload",
            action="store_const",
            const=name,
            default="none",
            help=help_text,
        )
    training.add_argument(
        "--offload",
        choices=("none", "optimizer", "parameters"),
        help="short for --offload-optimizer or --offload-parameters",
    )


def run(arguments: argparse.Namespace) -> int:
    """Estimate, and print the result."""
    try:
        request = _request(arguments)
        style = Style(sys.stdout.isatty() and "NO_COLOR" not in os.environ)
        with Progress() as progress:
            if arguments.sweep is not None:
                return _print_grid(request, arguments, style, progress)
            if arguments.max_batch:
                return _print_largest_batch(request, arguments, style, progress)
            return _print_estimate(request, arguments, style, progress)
    except TraceError:
        raise
    except EstimateError as error:  # an invalid option
        raise SettingError(str(error)) from error


def _print_estimate(
    request: EstimateRequest, arguments: argparse.Namespace, style: Style, progress: Progress
) -> int:
    from memagent.estimator.api import estimate_request

    is_traced = isinstance(request, TraceRequest)
    progress.tell("tracing" if is_traced else "")
    # advice by formula is instant; by trace it takes a trace for each change
    estimate = estimate_request(request, advice=arguments.advice or not is_traced)
    progress.tell("")
    if arguments.json:
        print(json.dumps(estimate.to_dict(), indent=2))
        return 0
    title = _title(arguments, arguments.batch or 1)
    print("\n".join(render(estimate, style=style, title=title, all_advice=arguments.advice)))
    if is_traced and estimate.fits is False and not arguments.advice:
        print(style.dim("--advice tries changes that would make it fit."))
    return 0


def _print_grid(
    request: EstimateRequest, arguments: argparse.Namespace, style: Style, progress: Progress
) -> int:
    from memagent.estimator.engine import estimate
    from memagent.estimator.search import grid

    values = _sweep_values(arguments.sweep or [_DEFAULT_SWEEP])

    def advance(done: int, total: int) -> None:
        progress.advance(done, total, f"{done + 1} of {total} estimates")

    points = list(
        grid(
            request,
            estimate,
            batches=values.get("batch", ()),
            sequences=values.get("sequence", ()),
            on_point=advance,
        )
    )
    progress.tell("")
    if arguments.json:
        rows = [
            {"batch": point.batch, "sequence": point.sequence, **point.estimate.to_dict()}
            for point in points
        ]
        print(json.dumps(rows, indent=2))
    else:
        print("\n".join(render_grid(points, request.limit_bytes, style=style)))
    return 0


def _sweep_values(parts: Sequence[str]) -> dict[str, list[int]]:
    """Parse `batch=1,2,4 sequence=512,1024`, or its short form `1,2,4x512,1024`."""
    short = _SHORT_SWEEP.fullmatch(parts[0]) if len(parts) == 1 else None
    if short is not None:
        texts = {key: values for key, values in short.groupdict().items() if values is not None}
    else:
        texts = {key: values for key, _, values in (part.partition("=") for part in parts)}
        if "seq" in texts:  # its older name
            texts["sequence"] = texts.pop("seq")
    try:
        values = {key: [int(number) for number in text.split(",")] for key, text in texts.items()}
    except ValueError:
        values = {}
    is_valid = values and not set(values) - {"batch", "sequence"}
    if not is_valid or min(min(numbers) for numbers in values.values()) < 1:
        raise SettingError(
            f"--sweep {' '.join(parts)} is not a table: write --sweep batch=1,2,4 sequence=512,1024"
        )
    return values


def _print_largest_batch(
    request: EstimateRequest, arguments: argparse.Namespace, style: Style, progress: Progress
) -> int:
    from memagent.estimator.engine import estimate
    from memagent.estimator.search import largest_batch, safe_batch

    if request.limit_bytes is None:
        raise SettingError("--max-batch needs --gpu: a card, or memory such as 24GiB")
    largest = largest_batch(request, estimate, on_batch=lambda n: progress.tell(f"batch {n}"))
    safe = None
    if isinstance(request, FormulaRequest):  # a trace's interval is narrow, and each trace slow
        safe = safe_batch(request, estimate, max_batch=largest.batch)
    progress.tell("")
    limit = format_bytes(request.limit_bytes)
    if arguments.json:
        document = {
            "batch": largest.batch,
            "sure_batch": safe,
            "limit_bytes": request.limit_bytes,
            "estimate": largest.estimate.to_dict() if largest.estimate else None,
        }
        print(json.dumps(document, indent=2))
    elif largest.estimate is not None:
        title = _title(arguments, largest.batch)
        print("\n".join(render(largest.estimate, style=style, title=title)))
        verdict = f"batch {largest.batch} fits in {limit}, {largest.too_large} does not"
        print(style.bold(verdict + (f"; a safe choice is {safe}" if safe else "")))
    else:
        print(
            f"A batch of 1 does not fit in {limit}. Run without --max-batch to see what would help."
        )
    return 0 if largest.batch else 1


def _request(arguments: argparse.Namespace) -> EstimateRequest:
    """Return a request by trace for a factory and, if possible, a config.json; else by formula."""
    model = arguments.model
    factory = _FACTORY.fullmatch(model)
    if factory is not None:
        return _factory_request(arguments, Path(factory["path"]))
    if arguments.input:
        raise SettingError(
            "--input is for path.py:factory: a model by name takes --batch and --sequence"
        )
    config = read_config(model) if _is_config(model) else None
    if config is not None and _is_traced(arguments):
        try:
            return _config_request(arguments, config)
        except EstimateError:
            # the installed transformers has no such model, but the formula may know it
            if arguments.method == "trace":
                raise
    if arguments.method == "trace":
        raise SettingError(
            f"{model} is known by its shape only: to trace it, give its config.json or "
            "path.py:factory"
        )
    limit, context = _limit_bytes(arguments), _context_bytes(arguments)
    if context is None and limit is not None and _card(arguments) is None:
        context = context_of(None).size_bytes  # --gpu 24GiB: the memory of some GPU
    shape = preset(model) if config is None else from_config(config, name=_config_name(model))
    return FormulaRequest(_spec(arguments, shape), limit, context)


def _is_traced(arguments: argparse.Namespace) -> bool:
    """Return True to trace a config.json: if asked to, or if all options can be traced."""
    untraced = {
        name
        for name in _FORMULA_ONLY
        if getattr(arguments, name) not in (None, "none", "eager", 0, 1, False)
    }
    if arguments.precision not in (None, *_TRACED_PRECISIONS):
        untraced.add("precision")
    if arguments.checkpointing == "selective":
        untraced.add("checkpointing")
    if arguments.attention == "math":
        untraced.add("attention")
    if "8bit" in arguments.optimizer or arguments.optimizer in ("paged_adamw", "lion"):
        untraced.add("optimizer")
    if arguments.method == "trace" and untraced:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(untraced))
        raise SettingError(
            f"tracing a config.json does not support {options}: leave it out, or use "
            "--method formula"
        )
    has_libraries = find_spec("torch") is not None and find_spec("transformers") is not None
    return arguments.method == "trace" or (
        arguments.method is None and not untraced and has_libraries
    )


def _config_request(arguments: argparse.Namespace, config: dict[str, Any]) -> TraceRequest:
    targets = arguments.lora_targets
    return request_for_config(
        config,
        batch=arguments.batch or 1,
        sequence=arguments.sequence,
        precision=_precision(arguments),
        optimizer=arguments.optimizer,
        attention=arguments.attention,
        checkpointing="non_reentrant" if arguments.checkpointing == "full" else None,
        accumulation=arguments.accumulation,
        lora_rank=arguments.lora_rank,
        lora_targets=targets if targets in (None, "all-linear") else targets.split(","),
        **_device_fields(arguments),
    )


def _factory_request(arguments: argparse.Namespace, path: Path) -> TraceRequest:
    if not path.is_file():
        raise SettingError(
            f"{path} does not exist: --model path.py:factory names a file and a function in it"
        )
    if not arguments.input:
        raise SettingError(
            f"the arguments of {arguments.model} are missing: give --input, such as "
            "--input 8x1024:int64"
        )
    if arguments.batch or arguments.sequence:
        raise SettingError(
            "--batch and --sequence are for models by name or config.json: a factory's are in "
            "--input"
        )
    autocast = {"amp": "bf16", "bf16": "bf16", "fp16": "fp16"}
    return TraceRequest(
        model=arguments.model,
        inputs=_inputs(arguments.input),
        optimizer=arguments.optimizer,
        autocast=autocast.get(arguments.precision),  # type: ignore[arg-type]  # one of its literals
        checkpointing="full" if arguments.checkpointing == "full" else None,
        accumulation=arguments.accumulation,
        **_device_fields(arguments),
    )


def _device_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    from memagent.estimator.api import device_fields

    card = _card(arguments)
    limit = None if card else _limit_bytes(arguments)
    return device_fields(gpu=card, limit_bytes=limit, context_bytes=_context_bytes(arguments))


def _inputs(texts: Sequence[str]) -> Any:
    """Parse shapes and dtypes, as positional arguments or by name."""
    inputs: list[tuple[str | None, Any]] = []
    for text in texts:
        match = _INPUT.fullmatch(text)
        if match is None:
            raise SettingError(
                f"--input {text} is not [NAME=]SHAPE[:DTYPE], such as 8x1024:int64 or "
                "labels=8x1024:int64"
            )
        shape = tuple(map(int, match["shape"].split("x")))
        inputs.append((match["name"], (shape, match["dtype"] or "float32")))
    if all(name is None for name, _ in inputs):
        return tuple(spec for _, spec in inputs)
    if any(name is None for name, _ in inputs):
        raise SettingError("--input: give all inputs a name, or none")
    return dict(inputs)


def _spec(arguments: argparse.Namespace, shape: ModelShape) -> TrainingSpec:
    adapters: dict[str, Any] = {}
    if arguments.lora_rank is not None:
        adapters = {
            "lora_rank": arguments.lora_rank,
            "lora_targets": _lora_targets(arguments, shape),
            "quantised": arguments.quantised,
        }
    elif arguments.quantised or arguments.lora_targets:
        raise SettingError("--quantised and --lora-targets need --lora-rank RANK")
    return TrainingSpec(
        model=shape,
        batch=1 if arguments.batch is None else arguments.batch,
        sequence=arguments.sequence,
        precision=_precision(arguments),
        optimizer=arguments.optimizer,
        implementation=arguments.implementation,
        checkpointing=arguments.checkpointing,
        checkpoint_every=arguments.checkpoint_every,
        attention=arguments.attention,
        loss=arguments.loss,
        accumulation=arguments.accumulation,
        parallel=Parallel(
            data=arguments.ranks,
            zero=arguments.zero,
            tensor=arguments.tensor,
            sequence=arguments.sequence_parallel,
            pipeline=arguments.pipeline,
        ),
        offload_optimizer=arguments.offload != "none",
        offload_parameters=arguments.offload == "parameters",
        gpu=_card(arguments),
        **adapters,
    )


def _precision(arguments: argparse.Namespace) -> str:
    """Return the usual default: frozen weights are loaded in bf16, and ZeRO's masters are fp32."""
    default = "bf16" if arguments.lora_rank else "mixed" if arguments.zero else "amp"
    return str(arguments.precision or default)


def _lora_targets(arguments: argparse.Namespace, shape: ModelShape) -> tuple[str, ...]:
    from memagent.estimator.advice.script_profile import lora_targets

    if arguments.lora_targets:
        return tuple(arguments.lora_targets.split(","))
    return lora_targets(TrainingSpec(shape))


def _is_config(model: str) -> bool:
    return Path(model).is_dir() or Path(model).suffix == ".json"


def _config_name(model: str) -> str:
    path = Path(model)
    return path.name if path.is_dir() else path.parent.name or path.name


def _card(arguments: argparse.Namespace) -> str | None:
    name = (arguments.gpu or "").lower()
    return name if name in GPUS else None


def _limit_bytes(arguments: argparse.Namespace) -> int | None:
    card = _card(arguments)
    if arguments.gpu is None or card:
        return GPUS[card].total_bytes if card else None
    try:
        return parse_bytes(arguments.gpu)
    except SettingError as error:
        raise SettingError(
            f"Unknown GPU {arguments.gpu!r}. Use one of: {', '.join(GPUS)}, or a size such as "
            "24GiB."
        ) from error


def _context_bytes(arguments: argparse.Namespace) -> int | None:
    return None if arguments.context is None else parse_bytes(arguments.context)


def _title(arguments: argparse.Namespace, batch: int) -> str:
    """Return the model by its name or file, its input, and its card."""
    model = arguments.model
    is_factory = _FACTORY.fullmatch(model) is not None
    name = _config_name(model) if not is_factory and _is_config(model) else model
    if arguments.input:
        size = f"inputs {' '.join(arguments.input)}"
        size += f", batch {batch}" if arguments.max_batch else ""
    else:
        size = f"batch {batch}"
        size += f" x {arguments.sequence:,} tokens" if arguments.sequence else ""
    return f"{name}, {size}" + (f", on {arguments.gpu}" if arguments.gpu else "")
