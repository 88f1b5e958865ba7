"""Rehearse a script from Python: `memagent.rehearse`. The verb uses the same parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from memagent.diagnostics import notify_user
from memagent.errors import RehearsalError, SettingError
from memagent.estimator.bounds import SIZE_LIMITS, TIME_LIMIT_S
from memagent.estimator.devices import context_of
from memagent.rehearsal import build
from memagent.rehearsal.launch import MAX_DEVICES, Machine, cuda_card
from memagent.rehearsal.prediction import store
from memagent.rehearsal.reaper import temporary_folder
from memagent.rehearsal.report import Rehearsal, rehearsal_of
from memagent.rehearsal.sandbox import Sandbox
from memagent.rehearsal.script import Script, run_script
from memagent.units import format_bytes, parse_bytes

STEPS_LIMIT = 1_000_000
"""A day of rehearsal at ten steps a second."""
OnState = Callable[[Mapping[str, Any]], None]


def rehearse(
    script: str | PathLike[str],
    args: Sequence[str] = (),
    *,
    gpu: str,
    gpus: int = 1,
    ranks: int = 1,
    steps: int | None = None,
    module: bool = False,
    held_bytes: int | str | None = None,
    context_bytes: int | str | None = None,
    patience_s: float = Script.patience_s,
    silent: bool = False,
) -> Rehearsal:
    """Run a training script on a GPU that isn't there, and return what it needs.

    The unchanged script runs in a process of its own, in a copy of the current folder
    ([rehearsal](rehearsal.md)), and is ended after some optimizer steps.

    script, args: as for `python`; with `module`, the script is the name of a module. gpu: a card
    such as "a100", or "NAME:24GiB". gpus: cards in the machine. ranks: processes that train
    together, the first of which is rehearsed. steps: optimizer steps; default: until the peak
    repeats. held_bytes: memory of other processes on each card. context_bytes: memory of the CUDA
    context. patience_s: the script ends if it makes no step in so much processor time, or in six
    times as much wall time. silent: drop its output.

    With a server (MEMAGENT_SERVER) the result is stored there, and runs of the same script and
    configuration are compared with it.

    Raises SettingError for invalid arguments, and RehearsalError if there is no CUDA build of torch
    or no compiler, or the script makes no optimizer step on the GPU.
    """
    target = fspath(script)
    if not module and not Path(target).is_file():
        raise SettingError(f"Script {target} does not exist.")
    rehearsed = Script(
        target,
        [str(argument) for argument in args],
        is_module=module,
        steps=checked_steps(steps),
        patience_s=checked_patience(patience_s),
        is_silent=silent,
    )
    machine = machine_of(
        gpu, gpus=gpus, ranks=ranks, held_bytes=held_bytes, context_bytes=context_bytes
    )
    device = build.prepare(build.torch_folder())
    result = run_in_sandbox(rehearsed, device, machine, lambda _state: None)
    if result.status == "interrupted":
        raise KeyboardInterrupt
    result.check_steps()
    if sentence := store(result, rehearsed):
        notify_user(sentence)
    return result


def machine_of(
    gpu: str,
    *,
    gpus: int = 1,
    ranks: int = 1,
    held_bytes: int | str | None = None,
    context_bytes: int | str | None = None,
) -> Machine:
    """Return the machine that these arguments describe. Raises SettingError."""
    card = cuda_card(gpu)
    if not 1 <= gpus <= MAX_DEVICES:
        raise SettingError(f"gpus {gpus}: a rehearsal has 1 to {MAX_DEVICES}.")
    if ranks < 1:
        raise SettingError(f"ranks {ranks}: at least 1.")
    if ranks > SIZE_LIMITS["ranks"]:
        raise SettingError(f"ranks {ranks}: at most {SIZE_LIMITS['ranks']}.")
    others_bytes = 0 if held_bytes is None else _size(held_bytes)
    if others_bytes >= card.total_bytes:
        text = format_bytes(others_bytes) if isinstance(held_bytes, int) else held_bytes
        raise SettingError(f"held {text}: less than the card's {format_bytes(card.total_bytes)}.")
    usual = context_of(None, card.capability).size_bytes
    return Machine(
        card,
        count=gpus,
        ranks=ranks,
        context_bytes=usual if context_bytes is None else _size(context_bytes),
        held_bytes=others_bytes,
    )


def checked_steps(steps: int | None) -> int | None:
    """Return `steps`. Raises SettingError if there are none, or more than a rehearsal can take."""
    if steps is not None and steps < 1:
        raise SettingError(f"steps {steps}: at least 1.")
    if steps is not None and steps > STEPS_LIMIT:
        raise SettingError(f"steps {steps}: at most {STEPS_LIMIT}.")
    return steps


def checked_patience(patience_s: float) -> float:
    """Return `patience_s`. Raises SettingError unless it's a time, at most a week."""
    if not 0 < patience_s <= TIME_LIMIT_S:  # nan, too
        raise SettingError(
            f"patience {patience_s:g}: give more than 0 and at most {TIME_LIMIT_S:g} seconds."
        )
    return patience_s


def run_in_sandbox(
    script: Script, device: build.Build, machine: Machine, on_state: OnState
) -> Rehearsal:
    """Run the script in a copy of this folder, and return what it needs; `on_state` gets readings.

    An interrupt ends the script, and what is known by then is returned. Raises RehearsalError.
    """
    with temporary_folder() as scratch:
        sandbox = Sandbox.of(current_folder(), scratch)
        state = run_script(script, device, machine, sandbox, on_state)
        return rehearsal_of(
            machine,
            json.loads(sandbox.outside(json.dumps(state))),
            sandbox.changes(),
            sandbox.writes_outside(),
        )


def _size(value: int | str) -> int:
    return value if isinstance(value, int) else parse_bytes(value)


def current_folder() -> Path:
    """Return the working folder. Raises RehearsalError if it is gone."""
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise RehearsalError("The current folder has been removed: change into another.") from error
