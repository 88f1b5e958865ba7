"""`attach()`: all of its arguments are checked before training begins; later nothing is raised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from memagent.errors import SettingError

if TYPE_CHECKING:  # `import memagent` imports this module: heavy imports wait for the call
    from memagent.lifecycle.options import AttachOptions
    from memagent.mirror.trackers import Tracker
    from memagent.null_run import NullRun
    from memagent.record.identity import Identity
    from memagent.run import Run
    from memagent.settings import Settings
    from memagent.wire.messages import Command, Risk

_derived_ids = 0
"""Runs of this process whose id is derived from the launch. All ranks count them, and so derive the
same id for their second run."""


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
    on_command: Callable[[Command], object] | None = None,
    console: bool = False,
    mirror: object = None,
) -> Run | NullRun:
    """Monitor the memory of a training run from now on.

    model: a torch.nn.Module, or a sequence of them.
    optimizer: a torch.optim.Optimizer, or a sequence; steps of the first are the run's steps.
    config: the run's hyperparameters (dict, dataclass, argparse.Namespace).
    total_steps: planned optimizer steps; shows whether a leak will end the run before its end.
    every: sample each so many steps; peaks still cover all steps.
    phases: record forward, backward and data separately too.
    limit_bytes: bytes (or "24GiB") that count as the device's limit.
    predict: estimate what the run needs, as soon as the first inputs are known.
    preflight: before the first step, try what no series of samples can predict, and report the
        need. True: a checkpoint and the optimizer's state. A batch: an evaluation too. A dict
        {"eval_batch": ..., "checkpoint": ...}: either may be a callable (docs/preflight.md).
    on_risk: called with a `Risk` on the training thread, at the next step boundary, when the run is
        expected to run out of memory.
    on_command: called in the same way, on rank 0, with a `Command` that was requested on the run's
        page: its kind is "checkpoint" or "stop". The script decides what to do.
    console: record the last 64 KiB of stdout and stderr, secrets masked, as `memagent run` does.
    mirror: "wandb", "mlflow" or "tensorboard", a run or writer of theirs, or several; they show
        memory, forecasts and warnings too (docs/integrations.md).

    Other settings come from MEMAGENT_ variables (docs/settings.md). Without a server the run is
    recorded to a local file. A run that already monitors the optimizer ends, and in a notebook
    every earlier run does: a cell may run twice. Raises SettingError for invalid arguments; once it
    has returned, memagent raises nothing into the script.
    """
    from memagent.lifecycle.options import make_options
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
        on_command=on_command,
        console=console,
        mirror=mirror,
    )
    models = _validate_models(model)
    optimizers = _validate_optimizers(optimizer)
    if settings.disabled:
        from memagent.null_run import NullRun

        return NullRun()
    return start_run(settings, models, optimizers, options)


def start_run(
    settings: Settings, models: Sequence[Any], optimizers: Sequence[Any], options: AttachOptions
) -> Run:
    """Start a run of this process.

    A run that `memagent run` started gives way to the script's own `attach`, which keeps its id.
    A run of the same optimizer ends, and in a notebook every earlier run.
    """
    from dataclasses import replace

    from memagent.diagnostics import notify_user
    from memagent.lifecycle.registry import register, running_automatic_runs, superseded_runs
    from memagent.record.git import ChangeCheck, find_repository
    from memagent.record.identity import identify

    global _derived_ids  # noqa: PLW0603 - a process trains one run at a time
    automatic = running_automatic_runs()
    run_id = settings.run_id or next((run.identity.run_id for run in automatic), None)
    identity = identify(run_id, ordinal=_derived_ids)
    trackers = _open_trackers(settings, options, identity)
    for run in automatic:
        run.retire()
    for run in superseded_runs(optimizers):
        run.finish()
        notify_user(f"run {run.identity.run_id} is finished: a new run replaces it")
    _derived_ids += run_id is None
    options = replace(options, is_announced=bool(automatic))
    if (tree := find_repository()) is not None:
        options = replace(options, changes=ChangeCheck(tree))
    from memagent.live.publisher import start_publishing  # git works while Python imports
    from memagent.run import Run

    run = Run(settings, identity, models, optimizers, options, trackers)
    if settings.live is not None:
        start_publishing(settings.live, run, options.total_steps)
    register(run)
    return run


def _open_trackers(settings: Settings, options: AttachOptions, identity: Identity) -> list[Tracker]:
    """Open the trackers to mirror to.

    Raises SettingError if a tracker has no active run; a run of `memagent run` does without it.
    """
    if options.mirror is None and settings.mirror is None:
        return []
    from memagent.diagnostics import notify_user
    from memagent.mirror.trackers import open_trackers, parse_mirror

    try:
        mirror = parse_mirror(settings.mirror) if options.mirror is None else options.mirror
        return open_trackers(mirror, run_id=identity.run_id, rank=identity.rank)
    except SettingError as error:
        if not options.automatic:
            raise
        notify_user(f"the run is recorded without a mirror: {error}")
        return []


def _validate_models(model: Any) -> list[Any]:
    models = _as_list(model, "model")
    for item in models:
        if isinstance(item, type) or not hasattr(item, "register_forward_pre_hook"):
            raise SettingError(
                f"model must be a torch.nn.Module or a sequence of them, "
                f"got a {type(item).__name__}."
            )
    return models


def _validate_optimizers(optimizer: Any) -> list[Any]:
    from memagent.hooks.step import unwrap

    return [unwrap(item) for item in _as_list(optimizer, "optimizer")]


def _as_list(value: Any, name: str) -> list[Any]:
    items = list(value) if isinstance(value, list | tuple) else [value]
    if not items or any(item is None for item in items):
        raise SettingError(f"{name} is {value!r}: pass the {name} that is trained.")
    return items
