"""Estimate what a training step will need on one of its GPUs, before it runs.

The step is traced: it runs on fake tensors, without GPU, weights and computation. A name and a
config.json are traced with the class of the installed transformers; without it, or with options
that a trace does not know, they are estimated by formula.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

from memagent.cli.estimate_request import build_request, fit_command, title_of
from memagent.cli.estimate_view import Style, render, render_grid
from memagent.errors import (
    EstimateError,
    OptionError,
    SettingError,
    TraceError,
    UnknownModelError,
    did_you_mean,
)
from memagent.estimator.bounds import check_size
from memagent.estimator.estimate import Estimate
from memagent.estimator.formula.spec import LOOPS, KbitTraining
from memagent.estimator.request import EstimateRequest, TraceRequest
from memagent.live.progress import Progress
from memagent.units import format_bytes

_SHORT_SWEEP = re.compile(r"(?P<batch>[\d,]+)(?:x(?P<sequence>[\d,]+))?")
_DEFAULT_SWEEP = "batch=1,2,4,8,16"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options; each has the name that Python and the HTTP API use, and older spellings."""
    add_step_arguments(parser)
    output = parser.add_argument_group("the output")
    table = output.add_mutually_exclusive_group()
    table.add_argument(
        "--max-batch", action="store_true", help="find the largest batch that fits --gpu"
    )
    table.add_argument(
        "--sweep",
        nargs="*",
        metavar="batch=1,2,4 sequence=512,1024",
        help="a table over batches and sequences; without values: batches of 1 to 16",
    )
    output.add_argument(
        "--advice", action="store_true", help="list all changes that would save memory, with code"
    )
    output.add_argument("--json", action="store_true", help="print one JSON document")


def add_step_arguments(
    parser: argparse.ArgumentParser, *, timeout_s: float = 60.0, timed: str = "a trace"
) -> None:
    """Add the options that describe a training step and its device."""
    model = parser.add_argument_group("the model")
    model.add_argument(
        "--model",
        required=True,
        help="a name as on the hub, of torchvision or timm; a config.json; or path.py:factory",
    )
    model.add_argument(
        "--hub",
        action="store_true",
        help="fetch the config.json of the name from the Hugging Face hub; needs memagent[hub]",
    )
    model.add_argument("--batch", type=int, help="samples in one forward; default 1")
    model.add_argument(
        "--sequence", "--seq", type=int, help="tokens a sample; default the model's own length"
    )
    model.add_argument(
        "--image-size",
        type=int,
        metavar="PIXELS",
        help="height and width of images; default the model's own",
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
        help="default: trace if possible; the formula answers at once",
    )
    model.add_argument(
        "--timeout",
        type=float,
        default=timeout_s,
        metavar="SECONDS",
        help=f"processor time of {timed}; default {timeout_s:g}",
    )
    _add_training(parser.add_argument_group("the training"))
    model.add_argument(
        "--transformers",
        metavar="VERSION",
        help="the formula's loss as of this version: before 4.50 it copies the logits",
    )
    many = parser.add_argument_group("many GPUs (one of them is estimated)")
    many.add_argument(
        "--zero", type=int, choices=(0, 1, 2, 3), default=0, help="ZeRO stage; 3 is FSDP"
    )
    many.add_argument("--ranks", type=int, default=1, help="GPUs that share the batch")
    many.add_argument(
        "--fsdp-wrap",
        choices=("peft", "layers"),
        help="with --lora-rank and --zero 3: peft, each adapter is a unit (the Trainer's own), or "
        "layers; default: the most that published runs held",
    )
    many.add_argument("--tensor", type=int, default=1, help="GPUs that share each matrix")
    many.add_argument(
        "--sequence-parallel", action="store_true", help="split norms and dropout over --tensor too"
    )
    many.add_argument("--pipeline", type=int, default=1, help="stages that share the layers")
    device = parser.add_argument_group("the device")
    device.add_argument("--gpu", help="memory such as 24GiB, or a card: a100, 'RTX 4090', h100 ...")
    device.add_argument(
        "--context", metavar="SIZE", help="memory of the CUDA context; default: the usual size"
    )


def parse_step(words: Sequence[str]) -> argparse.Namespace:
    """Return the options of a step."""
    parser = argparse.ArgumentParser()
    add_step_arguments(parser)
    return parser.parse_args(words)


def _add_training(training: Any) -> None:
    training.add_argument(
        "--precision",
        "--dtype",
        help="fp32, amp (bf16 autocast: the default), bf16 (default with --lora-rank), mixed "
        "(default with --zero 1 and 2), fp16, fp8",
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
    training.add_argument(
        "--loop",
        choices=LOOPS,
        help="trainer, transformers' own (default for names and config.json), drops the output "
        "before backward; plain (default else) keeps it until the next, step until backward's end",
    )
    training.add_argument("--lora-targets", help="layer names separated by commas, or all-linear")
    training.add_argument(
        "--quantised",
        help="hold the frozen weights as int8, int4, nf4 or nf4-double (with --lora-rank)",
    )
    training.add_argument(
        "--kbit-training",
        choices=get_args(KbitTraining),
        help="with --quantised: norms, embeddings and head are fp32, as after peft's "
        "prepare_model_for_kbit_training; trl narrows embeddings and head to bf16 again",
    )
    offload = training.add_mutually_exclusive_group()
    for name, help_text in (
        ("optimizer", "hold the optimizer's states on the host"),
        ("parameters", "hold parameters and states on the host"),
    ):
        offload.add_argument(
            f"--offload-{name}",
            dest="offload",
            action="store_const",
            const=name,
            default="none",
            help=help_text,
        )
    offload.add_argument(
        "--offload",
        choices=("none", "optimizer", "parameters"),
        help="short for --offload-optimizer or --offload-parameters",
    )


def run(arguments: argparse.Namespace) -> int:
    """Estimate, and print the result."""
    if arguments.advice and (arguments.max_batch or arguments.sweep is not None):
        raise SettingError("--advice is on one estimate: leave out --max-batch and --sweep")
    try:
        style = Style(sys.stdout.isatty() and "NO_COLOR" not in os.environ)
        with Progress() as progress, quiet_imports():
            progress.show("loading the model's libraries")
            request = build_request(arguments)
            progress.show("")
            if arguments.sweep is not None:
                return _print_grid(request, arguments, style, progress)
            if arguments.max_batch:
                return _print_largest_batch(request, arguments, style, progress)
            return _print_estimate(request, arguments, style, progress)
    except (OptionError, TraceError, UnknownModelError):
        raise
    except EstimateError as error:  # an invalid option
        raise SettingError(str(error)) from error


@contextmanager
def quiet_imports() -> Iterator[None]:
    """Leave out what libraries log about the machine that they are imported on."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _print_estimate(
    request: EstimateRequest, arguments: argparse.Namespace, style: Style, progress: Progress
) -> int:
    from memagent.estimator.api import estimate_request

    is_traced = isinstance(request, TraceRequest)
    progress.show("tracing" if is_traced else "")
    # advice by formula is instant; by trace it takes a trace for each change
    estimate = estimate_request(request, advice=arguments.advice or not is_traced)
    progress.show("")
    status = _exit_status(estimate)
    if arguments.json:
        print(json.dumps(estimate.to_dict(), indent=2))
        return status
    title = title_of(arguments, arguments.batch or 1, request)
    print("\n".join(render(estimate, style=style, title=title, all_advice=arguments.advice)))
    if estimate.outcome not in (None, "fits") and not estimate.is_bound:
        if is_traced and not arguments.advice:
            print(style.dim("--advice tries changes that would make it fit."))
        if command := fit_command(arguments, parse_step(["--model", arguments.model])):
            print(style.dim(f"To make it fit: {command}"))
    return status


def _exit_status(*estimates: Estimate) -> int:
    """Return 1 if one of them is a bound within the limit, which answers nothing."""
    return int(any(each.is_bound and each.outcome != "won't fit" for each in estimates))


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
    progress.show("")
    if arguments.json:
        rows = [
            {"batch": point.batch, "sequence": point.sequence, **point.estimate.to_dict()}
            for point in points
        ]
        print(json.dumps(rows, indent=2))
    else:
        print("\n".join(render_grid(points, request.limit_bytes, style=style)))
    return _exit_status(*(point.estimate for point in points))


def _sweep_values(parts: Sequence[str]) -> dict[str, list[int]]:
    """Parse `batch=1,2,4 sequence=512,1024`, or its short form `1,2,4x512,1024`."""
    short = _SHORT_SWEEP.fullmatch(parts[0]) if len(parts) == 1 else None
    if short is not None:
        texts = {key: values for key, values in short.groupdict().items() if values is not None}
    else:
        pairs = [part.partition("=") for part in parts]
        # seq is the older name
        texts = {key if key != "seq" else "sequence": values for key, _, values in pairs}
    unknown = [key for key in texts if key not in ("batch", "sequence")]
    try:
        values = {key: [int(number) for number in text.split(",")] for key, text in texts.items()}
    except ValueError:
        values = {}
    is_valid = values and not unknown and len(texts) in (len(parts), 2)
    if not is_valid or min(min(numbers) for numbers in values.values()) < 1:
        near = did_you_mean(unknown[0], ("batch", "sequence")) if unknown else ""
        raise SettingError(
            f"--sweep {' '.join(parts)} is not a table{near}: write --sweep batch=1,2,4 "
            "sequence=512,1024"
        )
    for key, numbers in values.items():
        check_size(key, max(numbers), label=f"{key} of --sweep")
    return values


def _print_largest_batch(
    request: EstimateRequest, arguments: argparse.Namespace, style: Style, progress: Progress
) -> int:
    from memagent.estimator.engine import estimate
    from memagent.estimator.search import largest_batch

    if request.limit_bytes is None:
        raise SettingError("--max-batch needs --gpu: a card, or memory such as 24GiB")
    largest = largest_batch(request, estimate, on_batch=lambda n: progress.show(f"batch {n}"))
    progress.show("")
    limit = format_bytes(request.limit_bytes)
    if arguments.json:
        document = {
            "batch": largest.batch,
            "limit_bytes": request.limit_bytes,
            "estimate": largest.estimate.to_dict() if largest.estimate else None,
        }
        print(json.dumps(document, indent=2))
    elif largest.estimate is not None:
        title = title_of(arguments, largest.batch, request)
        print("\n".join(render(largest.estimate, style=style, title=title)))
        verdict = f"batch {largest.batch} fits in {limit}"
        if largest.too_large is not None:
            verb = "is tight" if largest.outcome == "tight" else "won't fit"
            verdict += f", {largest.too_large} {verb}"
        print(style.bold(verdict))
    else:
        verb = "is tight" if largest.outcome == "tight" else "won't fit"
        print(f"A batch of 1 {verb} in {limit}. Run without --max-batch to see what would help.")
    return 0 if largest.batch else 1
