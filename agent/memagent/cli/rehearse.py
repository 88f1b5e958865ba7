"""Rehearse a training script on a GPU that isn't there.

The unchanged script runs with the CUDA build of torch at hand, whose calls a device without
arithmetic answers. Memory is counted by torch's own allocator. The script works in a copy of this
folder, without trackers, and is ended after some optimizer steps. The exit status is 0 if it fits.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from memagent.cli.progress import Progress
from memagent.cli.rehearse_view import render
from memagent.errors import MemagentError, RehearsalError, SettingError
from memagent.estimator.devices import CONTEXT_BYTES
from memagent.rehearsal import build
from memagent.rehearsal.cards import CARDS, card_named
from memagent.rehearsal.launch import MAX_DEVICES, Machine, notice_of
from memagent.rehearsal.report import Rehearsal, rehearsal_of
from memagent.rehearsal.sandbox import Sandbox
from memagent.rehearsal.script import Script, run_script
from memagent.units import format_bytes, parse_bytes

_PHASE_PREFIX, _PHASE_SUFFIX = "phase_", "_peak_bytes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "memagent rehearse --gpu CARD [--gpus N] [--ranks N] [--steps N] [--report FILE] "
        "[--fail-over SIZE] (SCRIPT | -m MODULE) [ARGS ...]"
    )
    parser.add_argument(
        "--gpu", required=True, help=f"a card, or NAME:24GiB for any other: {', '.join(CARDS)}"
    )
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="cards in the machine")
    parser.add_argument(
        "--ranks",
        type=int,
        default=1,
        metavar="N",
        help="processes that train together, as torchrun starts them: the first is rehearsed",
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="optimizer steps; default: until the peak repeats"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the result as JSON")
    parser.add_argument(
        "--fail-over", metavar="SIZE", help="exit with 1 if the tensors' peak exceeds SIZE"
    )
    parser.add_argument(
        "--held", metavar="SIZE", help="memory of other processes on each card; default none"
    )
    parser.add_argument(
        "--context", metavar="SIZE", help="memory of the CUDA context; default: the usual size"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=Script.patience_s,
        metavar="SECONDS",
        help="end the script if it makes no step for so long; default %(default)g",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="the target is a module")
    parser.add_argument("target", metavar="SCRIPT|MODULE")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="arguments of the script"
    )


def run(arguments: argparse.Namespace) -> int:
    """Rehearse the script, print the verdict, and write the report."""
    budget = parse_bytes(arguments.fail_over) if arguments.fail_over else None
    script = _script(arguments)
    machine = _machine(arguments)
    device = build.prepare(build.torch_folder())
    notice = notice_of(device)
    if notice:
        from memagent.cli import say

        say(notice)
    result = rehearse(script, device, machine)
    print("\n".join(render(result, arguments.target)))
    if arguments.report:
        arguments.report.write_text(json.dumps(result.to_dict(), indent=2) + "\n")
    if budget is not None and result.peak_allocated_bytes > budget:
        raise MemagentError(
            f"the peak of {format_bytes(result.peak_allocated_bytes)} exceeds the budget of "
            f"{format_bytes(budget)}"
        )
    if result.fits is None and not result.has_steps:
        raise RehearsalError(_no_steps_sentence(result))
    return 0 if result.fits else 1


def rehearse(script: Script, device: build.Build, machine: Machine) -> Rehearsal:
    """Run the script in a sandbox, and return what it needs."""
    sandbox = Sandbox.of(Path.cwd())
    try:
        with Progress() as progress:
            state = run_script(
                script, device, machine, sandbox, lambda state: progress.show(_progress_text(state))
            )
        return rehearsal_of(
            machine,
            json.loads(sandbox.outside(json.dumps(state))),
            phase_peaks(sandbox.records),
            sandbox.changes(),
            sandbox.writes_outside(),
        )
    finally:
        sandbox.remove()


def phase_peaks(records: Path) -> dict[str, int]:
    """Return the highest peak of each phase on the training device, from the agent's record."""
    from memagent.replay import read_trace

    peaks: dict[str, int] = {}
    for path in records.rglob("*.memagent"):
        with suppress(SettingError):
            trace = read_trace(path)
            for part in trace.parts:
                if part.device != trace.devices[0].id:
                    continue
                for name, values in part.columns.items():
                    numbers = [value for value in values if isinstance(value, int)]
                    if name.startswith(_PHASE_PREFIX) and numbers:
                        phase = name[len(_PHASE_PREFIX) : -len(_PHASE_SUFFIX)]
                        peaks[phase] = max(peaks.get(phase, 0), *numbers)
    return peaks


def _script(arguments: argparse.Namespace) -> Script:
    if not arguments.module and not Path(arguments.target).is_file():
        raise SettingError(
            f"Script {arguments.target} does not exist; for a module use -m {arguments.target}."
        )
    if arguments.steps is not None and arguments.steps < 1:
        raise SettingError(f"--steps {arguments.steps}: at least 1.")
    return Script(
        arguments.target,
        arguments.arguments,
        is_module=arguments.module,
        steps=arguments.steps,
        patience_s=arguments.patience,
    )


def _machine(arguments: argparse.Namespace) -> Machine:
    try:
        card = card_named(arguments.gpu)
    except RehearsalError as error:
        raise SettingError(str(error)) from error
    context = parse_bytes(arguments.context) if arguments.context else CONTEXT_BYTES
    if not 1 <= arguments.gpus <= MAX_DEVICES:
        raise SettingError(f"--gpus {arguments.gpus}: a rehearsal has 1 to {MAX_DEVICES}.")
    if arguments.ranks < 1:
        raise SettingError(f"--ranks {arguments.ranks}: at least 1.")
    others_bytes = parse_bytes(arguments.held) if arguments.held else 0
    return Machine(
        card,
        count=arguments.gpus,
        ranks=arguments.ranks,
        context_bytes=context,
        held_bytes=others_bytes,
    )


def _progress_text(state: Mapping[str, Any]) -> str:
    if not state.get("steps"):
        return "rehearsing: before the first step"
    return f"rehearsing: {state['steps']} steps, peak {format_bytes(state['peaks'][-1])}"


def _no_steps_sentence(result: Rehearsal) -> str:
    if result.steps:
        return "The script trains, but not on the GPU: it allocated nothing there."
    return (
        f"The script made no optimizer step: {result.end}. A rehearsal needs a training loop with "
        "a torch optimizer."
    )
