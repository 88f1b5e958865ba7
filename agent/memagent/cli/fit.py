"""Choose the cheapest changes that make a training step fit a GPU, and print their code.

The step is traced as by `memagent estimate --method trace`, with and without changes. Blocks run
again in backward, the batch is divided, the optimizer takes one parameter at a time or keeps its
states on the host, or forward runs under autocast. No GPU and no weights are needed. In a script,
`memagent.fit` does the same to the live objects.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from memagent.cli.estimate import add_step_arguments, quiet_imports
from memagent.cli.estimate_request import build_request
from memagent.errors import EstimateError, OptionError, SettingError, TraceError, UnknownModelError
from memagent.estimator.request import EstimateRequest, TraceRequest
from memagent.fitting.budget import TIMEOUT_S
from memagent.fitting.changes import ALLOWED
from memagent.live.progress import Progress

if TYPE_CHECKING:
    from memagent.fitting.plan import FitPlan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_step_arguments(parser, timeout_s=TIMEOUT_S, timed="all traces")
    output = parser.add_argument_group("the changes")
    output.add_argument(
        "--allow",
        nargs="+",
        choices=ALLOWED,
        default=ALLOWED,
        help="which changes may be made; all but autocast leave gradients as they are",
    )
    output.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Print what makes the step fit; exit status 1 if nothing does."""
    if arguments.method == "formula":
        raise SettingError("fit traces the step: leave out --method formula")
    arguments.method = "trace"
    try:
        with quiet_imports():
            request = build_request(arguments)
    except (OptionError, TraceError, UnknownModelError):
        raise
    except EstimateError as error:  # an invalid option
        raise SettingError(str(error)) from error
    if request.limit_bytes is None:
        raise SettingError("fit needs --gpu: a card, or memory such as 24GiB")
    plan = _fitted(request, arguments.allow)
    if arguments.json:
        changes = {**asdict(plan.changes), "blocks": [str(b) for b in plan.changes.blocks]}
        document = {"changes": changes, "code": plan.code, "estimate": plan.estimate.to_dict()}
        print(json.dumps(document, indent=2))
    else:
        print("\n\n".join(filter(None, (*request.remarks, str(plan), plan.code))))
    return 0


def _fitted(request: EstimateRequest, allow: tuple[str, ...]) -> FitPlan:
    from memagent.estimator.trace.session import build_model, build_optimizer
    from memagent.fitting.api import fit_request

    if not isinstance(request, TraceRequest):
        raise SettingError("fit traces the step: give path.py:factory, a config.json or a name")
    with Progress() as progress:
        progress.show("tracing")
        model = build_model(request.model).train()
        optimizer = build_optimizer(request.optimizer, model, lambda _: None)
        values = {field.name: getattr(request, field.name) for field in fields(TraceRequest)}
        live = TraceRequest(**values | {"model": model, "optimizer": optimizer})
        return fit_request(
            live,
            allow=allow,
            on_trace=lambda number, left_s: progress.show(
                f"trace {number}, {left_s:.0f} s of processor time left"
            ),
        )
