"""`attach()`: everything that can be wrong with its arguments is said here, before training begins; afterwards nothing is raised."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from memagent.errors import SettingError

if TYPE_CHECKING:  # `import memagent` imports this module: what is heavy waits for the call
    from memagent.lifecycle.options import AttachOptions
    from memagent.null_run import NullRun
    from memagent.run import Run
    from memagent.wire.messages import Risk

MOST_TAGS, LONGEST_TAG = 100, 200
"""What the server takes: see `RunStart`."""


def attach(
    model: Any,
    optimizer: Any,
    *,
    project: str | None = None,
    name: str | None = None,
    config: Any = None,
    tags: Sequence[str] = (),
    server: str | None = None,
    token: str | None = None,
    run_id: str | None = None,
    total_steps: int | None = None,
    every: int | None = None,
    phases: bool = True,
    limit_bytes: int | str | None = None,
    predict: bool = True,
    preflight: object = None,
    on_risk: Callable[[Risk], None] | None = None,
    mirror: object = None,
) -> Run | NullRun:
    """Watch the memory of a training run from now on.

    model: a torch.nn.Module, or a sequence of them. optimizer: a torch.optim.Optimizer, or a sequence; the first one's steps are
    the run's steps. config: the run's hyperparameters (dict, dataclass, argparse.Namespace). total_steps: how many steps are
    planned, which tells a leak that will kill the run from one that won't. every: sample each so many steps; peaks still cover
    all. phases: also tell forward, backward and data apart. limit_bytes: bytes (or "24GiB") that count as the device's limit.
    predict: estimate what the run needs, once the first inputs are seen. preflight: try before the first step what no series shows
    coming, and say what will be needed: True for a checkpoint and the optimizer's state, a batch for an evaluation as well, or
    {"eval_batch": ..., "checkpoint": ...}, either of which may be a callable (docs/preflight.md). on_risk: called with a `Risk` on
    the training thread at the next step boundary when the run is expected to run out of memory. mirror: "wandb", "mlflow" or
    "tensorboard", a run or writer of theirs, or several: where memory, forecasts and warnings are shown too (docs/integrations.md).

    Settings not given come from MEMAGENT_ variables (docs/settings.md). Without a server the run is recorded to a local file.
    Raises SettingError for arguments that make no sense; once it has returned, nothing of memagent raises into the script.
    """
    from memagent.settings import Settings

    settings = Settings.from_environ(
        server=server,
        token=token,
        project=project,
        name=name,
        run_id=run_id,
        every=every,
        limit_bytes=limit_bytes,
    )
    options = make_options(
        config=config,
        tags=tags,
        total_steps=total_steps,
        phases=phases,
        predict=predict,
        preflight=preflight,
        on_risk=on_risk,
        mirror=mirror,
    )
    models, optimizers = _modules(model), _optimizers(optimizer)
    if settings.disabled:
        from memagent.null_run import NullRun

        return NullRun()
    from memagent.lifecycle.registry import start_run

    return start_run(settings, models, optimizers, options)


def make_options(**options: Any) -> AttachOptions:
    """What `attach` takes beyond settings, checked. Raises SettingError for what makes no sense or is no option."""
    from memagent.lifecycle.options import AttachOptions

    unknown = sorted(set(options) - set(AttachOptions.__dataclass_fields__))
    if unknown:
        raise SettingError(f"there is no option {', '.join(unknown)}: see memagent.attach")
    from memagent.mirror import requested as mirrored
    from memagent.preflight import requested

    checked = {
        "total_steps": _steps(options.get("total_steps")),
        "tags": _tags(options.get("tags")),
        "preflight": requested(options.get("preflight")),
        "mirror": None if options.get("mirror") is None else mirrored(options["mirror"]),
    }
    return AttachOptions(**{**options, **checked})


def _steps(value: Any) -> int | None:
    """A whole number, as the server takes nothing else: `len(loader) * epochs / accumulation` is none, numpy's are of other types."""
    if value is None:
        return None
    try:
        steps: int = math.ceil(value)
    except (TypeError, ValueError, OverflowError):
        steps = 0
    if not 0 < steps < 2**53:
        raise SettingError(
            f"total_steps is {value!r}: give the number of planned optimizer steps, 1 or more"
        )
    return steps


def _tags(value: Any) -> list[str]:
    if value is not None and (isinstance(value, str) or not isinstance(value, Iterable)):
        raise SettingError(f"tags is {value!r}: give a list of texts")
    tags = [str(tag) for tag in value or ()]
    if len(tags) > MOST_TAGS or any(len(tag) > LONGEST_TAG for tag in tags):
        raise SettingError(
            f"these are {len(tags)} tags: give at most {MOST_TAGS}, of at most {LONGEST_TAG} characters"
        )
    return tags


def _modules(model: Any) -> list[Any]:
    models = _sequence(model, "model")
    for item in models:
        if isinstance(item, type) or not hasattr(item, "register_forward_pre_hook"):
            raise SettingError(
                f"model is a {type(item).__name__}: give attach() a torch.nn.Module, or a sequence of them"
            )
    return models


def _optimizers(optimizer: Any) -> list[Any]:
    from memagent.hooks.step import unwrap

    return [unwrap(item) for item in _sequence(optimizer, "optimizer")]


def _sequence(value: Any, what: str) -> list[Any]:
    items = list(value) if isinstance(value, list | tuple) else [value]
    if not items or any(item is None for item in items):
        raise SettingError(f"{what} is {value!r}: give attach() the {what} that is trained")
    return items
