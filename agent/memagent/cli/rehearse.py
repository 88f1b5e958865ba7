"""Rehearse a training script on a GPU that isn't there.

The unchanged script runs with the CUDA build of torch at hand, whose calls a device without
arithmetic answers. Memory is counted by torch's own allocator. The script works in a copy of this
folder, without trackers, and is ended after some optimizer steps. The exit status is 0 if it fits.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from memagent.cli import say
from memagent.cli.device_options import context_bytes_of, size_of
from memagent.cli.peak_budget import budgets_of
from memagent.cli.rehearse_view import batch_line, batch_sentence, render, what_if_lines
from memagent.cli.target import add_target, check_report, check_target
from memagent.errors import SettingError
from memagent.live.progress import Progress
from memagent.rehearsal import build
from memagent.rehearsal.api import checked_patience, checked_steps, machine_of, run_in_sandbox
from memagent.rehearsal.batch_search import BatchSearch, BatchSlot, find_batch, slot_of
from memagent.rehearsal.launch import Machine, notice_of
from memagent.rehearsal.prediction import store
from memagent.rehearsal.report import Rehearsal
from memagent.rehearsal.script import Script
from memagent.rehearsal.what_if import ChangedScript, WhatIf, changed_scripts, try_changes
from memagent.units import format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "memagent rehearse --gpu CARD [--gpus N] [--ranks N] [--steps N] [--report FILE] "
        "[--fail-over SIZE] [--baseline FILE] [--tolerance PERCENT] "
        "[--find-batch NAME] [--what-if] (SCRIPT | -m MODULE) [ARGS ...]"
    )
    parser.add_argument(
        "--gpu", required=True, help="a card (a100, 'RTX 4090', h100 ...), or NAME:24GiB"
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
        "--baseline",
        type=Path,
        metavar="FILE",
        help="exit with 1 if the tensors' peak exceeds that of an earlier report",
    )
    parser.add_argument(
        "--tolerance", default="2%", metavar="PERCENT", help="of --baseline; default %(default)s"
    )
    parser.add_argument(
        "--find-batch",
        metavar="NAME",
        help="find the largest batch that fits: NAME is the script's option, {NAME} in ARGS, or a "
        "variable in capitals",
    )
    parser.add_argument(
        "--what-if",
        action="store_true",
        help="rehearse each change that can be made from outside, and show its saving",
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
        help="processor time without a step that ends the script; default %(default)g",
    )
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Rehearse the script, print the verdict, and write the report."""
    _check_report(arguments.report)
    budgets = budgets_of(arguments.fail_over, arguments.baseline, arguments.tolerance)
    script = _script(arguments)
    name = arguments.find_batch
    slot = None if name is None else slot_of(script, name, os.environ)
    machine = _machine(arguments)
    device = build.prepare(build.torch_folder())
    notice = notice_of(device)
    if notice:
        say(notice)
    rehearsals = Rehearsals(device, machine)
    search = rehearsals.find_batch(slot) if slot else None
    result = search.result if search else rehearsals.rehearse(script)
    print("\n".join(render(result, arguments.target)), flush=True)
    contents = result.to_dict()
    if search:
        print(batch_sentence(search))
        contents["batch"] = search.to_dict()
    if arguments.what_if and result.fits is not None:
        if slot and search and search.largest:
            slot = replace(slot, first=search.largest)
        what_if = rehearsals.try_changes(result, slot or BatchSlot(script))
        print("\n".join(what_if_lines(what_if)))
        contents["what_if"] = what_if.to_dict()
    if sentence := store(result, search.script if search else script):
        say(sentence)
    if arguments.report:
        arguments.report.write_text(json.dumps(contents, indent=2) + "\n")
    for budget in budgets:
        budget.check(result.peak_allocated_bytes)
    result.check_steps()
    return 0 if result.fits and (search is None or search.is_complete) else 1


class Rehearsals:
    """Rehearses on one machine, and shows the progress."""

    def __init__(self, device: build.Build, machine: Machine) -> None:
        self._device = device
        self._machine = machine

    def rehearse(self, script: Script, label: str = "rehearsing") -> Rehearsal:
        with Progress() as progress:
            return run_in_sandbox(
                script,
                self._device,
                self._machine,
                lambda state: progress.show(f"{label}: {_progress_text(state)}"),
            )

    def find_batch(self, slot: BatchSlot) -> BatchSearch:
        """Print a line about each batch when its rehearsal has ended."""
        began_at = time.monotonic()

        def show(batch: int, result: Rehearsal) -> None:
            nonlocal began_at
            ended_at = time.monotonic()
            print(batch_line(batch, result, ended_at - began_at), flush=True)
            began_at = ended_at

        def rehearse_batch(batch: int, script: Script) -> Rehearsal:
            return self.rehearse(replace(script, is_silent=True), f"batch {batch:,}")

        return find_batch(slot, rehearse_batch, show)

    def try_changes(self, now: Rehearsal, slot: BatchSlot) -> WhatIf:
        """Rehearse the script with each change, without its output."""
        steps = now.steps if now.fits else slot.script.steps
        silent = replace(slot.script, is_silent=True, steps=steps)
        changes = list(changed_scripts(replace(slot, script=silent), os.environ))
        numbers = iter(range(1, len(changes) + 1))

        def rehearse_change(changed: ChangedScript) -> Rehearsal:
            label = f"change {next(numbers)} of {len(changes)}, {changed.name}"
            return self.rehearse(changed.script, label)

        return try_changes(now, changes, rehearse_change)


def _check_report(path: Path | None) -> None:
    """Raise SettingError before a long rehearsal if its report can't be written."""
    check_report(path)
    if path is not None and not path.absolute().parent.is_dir():
        raise SettingError(f"--report {path} cannot be written: there is no such folder.")


def _script(arguments: argparse.Namespace) -> Script:
    check_target(arguments)
    return Script(
        arguments.target,
        arguments.arguments,
        is_module=arguments.module,
        steps=checked_steps(arguments.steps),
        patience_s=checked_patience(arguments.patience),
    )


def _machine(arguments: argparse.Namespace) -> Machine:
    return machine_of(
        arguments.gpu,
        gpus=arguments.gpus,
        ranks=arguments.ranks,
        held_bytes=None if arguments.held is None else size_of("--held", arguments.held),
        context_bytes=context_bytes_of(arguments),
    )


def _progress_text(state: Mapping[str, Any]) -> str:
    if not state.get("steps"):
        return "before the first step"
    return f"{state['steps']} steps, peak {format_bytes(state['peaks'][-1])}"
