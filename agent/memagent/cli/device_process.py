"""The process of a rehearsed script: `memagent rehearse` starts it on the device.

    python -m memagent.cli.device_process STATE STEPS RANKS (file|module) TARGET [ARGS ...]

1. Small tensors have values, and reads of the device are counted.
2. The agent is attached as by `memagent run`: phases and components come from its reports.
3. A change to try is made before the script starts.
4. The script is ended after STEPS optimizer steps, by 0 when the peak has repeated.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from memagent.cli.target import run_target
from memagent.diagnostics import ErrorGuard
from memagent.hooks.exit import describe_error, error_chain, status_of
from memagent.integrations.autoattach import AutoAttach
from memagent.lifecycle.options import AttachOptions
from memagent.lifecycle.registry import RegisteredRun, newest_run
from memagent.rehearsal.measurement import Measurement
from memagent.rehearsal.ranks import communicators, rehearse_alone
from memagent.rehearsal.reads import place_of_error
from memagent.rehearsal.script import CHANGE_VARIABLE
from memagent.settings import Settings

LIBRARIES = ("torch", "transformers", "accelerate", "peft", "trl", "lightning", "diffusers")


def main(argv: list[str]) -> int:
    """Run the script and write what was measured."""
    state, steps, ranks, kind, target, *arguments = argv
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from memagent.rehearsal.script_changes import apply_change
    from memagent.rehearsal.values import SmallValues

    measurement = Measurement(torch, Path(state), int(steps) or None)
    measurement.leave = lambda: os._exit(0)
    measurement.phase_peaks = PhasePeaks().read
    auto = AutoAttach(replace(Settings.from_environ(), server=None), AttachOptions(predict=False))
    auto.install()
    register_optimizer_step_post_hook(measurement.after_step)
    torch.autograd.backward = measurement.count_backwards(torch.autograd.backward)
    rehearse_alone(int(ranks))
    if change := os.environ.get(CHANGE_VARIABLE):
        apply_change(change)
    mode = SmallValues(measurement.reads.add)
    _leave_mode_in_children()

    def end(error: BaseException | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal and the verb both interrupt
        measurement.read_peaks()
        measurement.details["versions"] = _versions()
        measurement.details["has_convolutions"] = mode.has_convolutions
        measurement.details["tunes_convolutions"] = mode.tunes_convolutions
        measurement.details["communicators"] = communicators()
        measurement.details["architectures"] = torch.cuda.get_arch_list()
        _describe_end(measurement, error)
        with ErrorGuard(raise_errors=False).section("ending the rehearsal"):
            _finish_run(auto, measurement, error)
        measurement.write()

    with mode:
        ended = run_target(target, arguments, is_module=kind == "module", on_end=end)
    return ended.status


def _versions() -> dict[str, str]:
    """Return the versions of the loaded libraries that decide about memory."""
    modules = {name: sys.modules.get(name) for name in LIBRARIES}
    versions = {name: getattr(module, "__version__", None) for name, module in modules.items()}
    return {name: str(version) for name, version in versions.items() if version is not None}


def _describe_end(measurement: Measurement, error: BaseException | None) -> None:
    """Say how the script ended, unless it was ended."""
    if measurement.status != "running":
        return
    if isinstance(error, KeyboardInterrupt):
        measurement.status = "interrupted"
        return
    measurement.status = status_of(error)
    if error is None or measurement.status == "completed":
        return
    cause = error
    if measurement.status == "oom":
        causes = [link for link in error_chain(error) if "out of memory" in str(link).lower()]
        cause = causes[0] if causes else error
    place = place_of_error(cause)
    measurement.details["error"] = {
        "message": str(cause) if measurement.status == "oom" else describe_error(cause),
        "file": place.file if place else None,
        "line": place.line if place else None,
        "step": measurement.steps + 1,
    }


def _finish_run(auto: AutoAttach, measurement: Measurement, error: BaseException | None) -> None:
    """End the agent's run, and take its components."""
    auto.begin()
    run = newest_run()
    if run is None:
        return
    if run.status == "running":
        if measurement.status == "oom" and error is not None:
            run.fail_with(error)
        else:
            run.finish()
    measurement.details["project"] = run.settings.project
    report = run.report()
    measurement.details["components"] = report["components"]
    title = (report["out_of_memory"] or {}).get("title")
    if title and "error" in measurement.details:
        measurement.details["error"]["title"] = title


class PhasePeaks:
    """The highest peak of each phase over all runs of this process."""

    def __init__(self) -> None:
        self._runs: list[RegisteredRun] = []

    def read(self) -> dict[str, int]:
        run = newest_run()
        if run is not None and run not in self._runs:
            self._runs.append(run)
        peaks: dict[str, int] = {}
        for run in self._runs:
            for phase, size in run.report()["phases"].items():
                peaks[phase] = max(peaks.get(phase, 0), size)
        return peaks


def _leave_mode_in_children() -> None:
    """Let forked workers, which prepare data on the host, compute without the mode."""

    def leave() -> None:
        from torch.utils import _python_dispatch

        pop: Any = getattr(_python_dispatch, "_pop_mode", None)
        if pop is not None and _python_dispatch._get_current_dispatch_mode() is not None:
            pop()

    os.register_at_fork(after_in_child=leave)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
