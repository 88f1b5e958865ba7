"""Run a training script with memagent attached, without editing it.

Its memory is recorded, forecast and reported as if it had called memagent.attach. It works under
torchrun, as in torchrun ... -m memagent run train.py. It also works around a launcher, as in
memagent run -m torch.distributed.run ... train.py or
memagent run -m accelerate.commands.launch ... train.py."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from memagent.attach import start_run
from memagent.cli.device_options import size_of
from memagent.cli.target import add_target, check_report, check_target, end_by_interrupt, run_target
from memagent.console.capture import acquire_capture
from memagent.diagnostics import ErrorGuard, notify_user
from memagent.errors import MemagentError, SettingError
from memagent.hooks.exit import EXEC_FUNCTIONS, is_program, status_of
from memagent.integrations.autoattach import AutoAttach
from memagent.integrations.timed_run import TimedRun
from memagent.lifecycle.options import AttachOptions
from memagent.lifecycle.registry import RegisteredRun, newest_run
from memagent.live.supervisor import run_with_view
from memagent.mirror.trackers import parse_mirror
from memagent.settings import Settings
from memagent.units import format_bytes

OVER_BUDGET = 1
"""Exit status when the script itself succeeded and --fail-over was exceeded."""
UPDATE_S = 10.0
_POLL_S = 0.2
"""Interval at which a new run is looked for."""
_OS_EXIT_DEADLINE_S = 10.0
"""Longest that `os._exit` is delayed. It takes that long on a busy machine only."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "memagent run [--report FILE] [--fail-over SIZE] [--live] (SCRIPT | -m MODULE) [ARGS ...]"
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="write a report as JSON (one file per rank: .rankN is added)",
    )
    parser.add_argument(
        "--fail-over",
        metavar="SIZE",
        help=f"exit with {OVER_BUDGET} if the peak exceeds SIZE, as in 20GiB",
    )
    parser.add_argument(
        "--live", action="store_true", help="show the run in the last lines of the terminal"
    )
    parser.add_argument("--project", help="project of the run")
    parser.add_argument("--name", help="name of the run")
    parser.add_argument(
        "--server", help="address of the server; default MEMAGENT_SERVER, else a local file"
    )
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    budget = None
    if arguments.fail_over is not None:
        budget = size_of("--fail-over", arguments.fail_over)
    _check_names(arguments)
    check_report(arguments.report)
    settings = Settings.from_environ(
        server=arguments.server, project=arguments.project, name=arguments.name
    )
    parse_mirror(settings.mirror)  # reports a wrong value before the script starts
    check_target(arguments)
    if arguments.live:
        return run_with_view(_command_without_live(arguments))
    launcher_arguments = arguments.module and through_launcher(
        arguments.target, arguments.arguments, _own_options(arguments)
    )
    if launcher_arguments:  # the launcher's processes attach, not this one
        end = run_target(
            arguments.target, launcher_arguments, is_module=True, on_end=lambda _error: None
        )
        return end.status
    recorder = Recorder(settings)
    report = ReportFile(arguments.report, budget)
    if not settings.disabled:
        recorder.begin()
        report.begin(lambda status: recorder.finish_run(SystemExit(status)))
    try:
        end = run_target(
            arguments.target,
            arguments.arguments,
            is_module=arguments.module,
            on_end=recorder.finish_run,
        )
    finally:
        recorder.auto.remove()
    status = report.end(end.status)
    if end.is_interrupt:
        end_by_interrupt()
    return status


def _check_names(arguments: argparse.Namespace) -> None:
    for name in ("project", "name", "server"):
        if getattr(arguments, name) == "":
            raise SettingError(f"--{name} is empty: give one, or leave it out")


def _command_without_live(arguments: argparse.Namespace) -> list[str]:
    """Return the command line that runs the target without --live."""
    target = ["-m", arguments.target] if arguments.module else [arguments.target]
    return [
        sys.executable,
        "-m",
        "memagent",
        "run",
        *_own_options(arguments),
        *target,
        *arguments.arguments,
    ]


def _own_options(arguments: argparse.Namespace) -> list[str]:
    """Return the options of this call, for another call in a child process."""
    options = {
        "--report": arguments.report and arguments.report.resolve(),
        "--fail-over": arguments.fail_over,
        "--project": arguments.project,
        "--name": arguments.name,
        "--server": arguments.server,
    }
    return [text for option, value in options.items() if value for text in (option, str(value))]


class Recorder:
    """Records a script: attached to its optimizers, or by time if it has none."""

    def __init__(self, settings: Settings) -> None:
        guard = ErrorGuard(raise_errors=settings.raise_errors)
        by_time = AttachOptions(automatic=True, predict=False, has_past_peaks=True)
        self.timed = TimedRun(lambda: start_run(settings, [], [], by_time), guard)
        self.auto = AutoAttach(settings, on_optimizer=self.timed.stop)
        self._is_disabled = settings.disabled
        self._has_console = settings.console is not False

    def begin(self) -> None:
        """Raises MemagentError without torch."""
        try:
            self.auto.install()
        except ImportError as error:
            raise MemagentError(
                "memagent run needs PyTorch in the same environment: pip install torch"
            ) from error
        if self._has_console:
            acquire_capture()  # until the process ends: the script may print before its run begins
        self.timed.begin()

    def end(self) -> RegisteredRun | None:
        """Return the script's run, now that it ended; it may have crashed before its first step."""
        self.timed.stop()
        with ErrorGuard(raise_errors=False).section("attaching"):
            self.auto.begin()
        if newest_run() is None and not self._is_disabled:
            self.timed.record_end()
        return newest_run()

    def finish_run(self, error: BaseException | None) -> None:
        """End the script's run with its uncaught error."""
        run = self.end()
        if run is not None and run.status == "running":
            if error is None or status_of(error) == "completed":
                run.finish()
            else:
                run.fail_with(error)


class ReportFile:
    """The file of --report, and the budget of --fail-over.

    1. `begin` before the script runs, `end` after it; `os._exit` and `os.exec*` end it, too.
    2. Until then the file is written every ten seconds, with the status `running`: that's what a
       script leaves that is killed. The report of an earlier run is deleted first.
    3. Without a path only the budget is checked.
    """

    def __init__(self, path: Path | None, budget: int | None) -> None:
        self._path = path
        self._budget = budget
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def begin(self, finish: Callable[[int], object]) -> None:
        """Watch for the end by `os._exit(status)` or `os.exec*`: then `finish` ends the run."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            threading.Thread(target=self._update, name="memagent-report", daemon=True).start()
        original = os._exit

        @functools.wraps(original)
        def exit_at_once(status: int) -> None:
            if os.getpid() == self._pid and not self._is_over.is_set():
                status = self._end_on_thread(finish, status)
            original(status)

        os._exit = exit_at_once  # type: ignore[assignment]
        for name in EXEC_FUNCTIONS:
            setattr(os, name, self._wrap_exec(getattr(os, name), finish))

    def end(self, status: int) -> int:
        """Write the report. Return the exit status, which an exceeded budget makes a failure."""
        if os.getpid() != self._pid:  # a fork that reached the end of the script, or its own
            return status
        with self._lock:  # an update under way comes first
            self._is_over.set()
        run = newest_run()
        if run is None:
            notify_user("nothing was recorded, so there is no report and no budget was checked")
            return status
        contents = self._write(run)
        peak = max(device["peak_allocated_bytes"] for device in contents["peaks"].values())
        if self._budget is None or peak <= self._budget or status != 0:
            return status
        notify_user(
            f"the peak of {format_bytes(peak)} exceeds the budget of {format_bytes(self._budget)}"
        )
        return OVER_BUDGET

    def _wrap_exec(
        self, original: Callable[..., Any], finish: Callable[[int], object]
    ) -> Callable[..., Any]:
        @functools.wraps(original)
        def run_program(path: Any, *arguments: Any, **keywords: Any) -> Any:
            if os.getpid() == self._pid and not self._is_over.is_set() and is_program(path):
                self._end_on_thread(finish, 0)
            return original(path, *arguments, **keywords)

        return run_program

    def _end_on_thread(self, finish: Callable[[int], object], status: int) -> int:
        """End the run elsewhere, since the exiting thread may hold any lock."""
        results = [status]

        def end() -> None:
            finish(status)
            results.append(self.end(status))

        thread = threading.Thread(target=end, name="memagent-exit", daemon=True)
        with suppress(RuntimeError):  # no threads any more: the interpreter is shutting down
            thread.start()
            thread.join(_OS_EXIT_DEADLINE_S)
        return results[-1]

    def _update(self) -> None:
        delay_s = _POLL_S
        while not self._is_over.wait(delay_s):
            run = newest_run()
            if run is not None:
                delay_s = UPDATE_S
                with suppress(Exception), self._lock:  # the script may change what is read
                    if not self._is_over.is_set():
                        self._write(run)

    def _write(self, run: RegisteredRun) -> dict[str, Any]:
        contents, path = run.report(), self._path
        if path is not None:
            if run.identity.world_size > 1:
                path = path.with_suffix(f".rank{contents['rank']}{path.suffix}")
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f"{path.name}.draft")  # a kill leaves the old one or the new one
            draft.write_text(json.dumps(contents, indent=2) + "\n")
            draft.replace(path)
        return contents


_PARSERS = {
    "torch.distributed.run": "get_args_parser",
    "torch.distributed.launch": "get_args_parser",
    "accelerate.commands.launch": "launch_command_parser",
}
"""Functions that create a launcher's argument parser, with the script as `training_script`."""


def through_launcher(module: str, arguments: list[str], own_options: list[str]) -> list[str] | None:
    """Return arguments that make the launcher `module` run `memagent run` in each process.

    The process then runs `python -m LAUNCHER ... -m memagent run train.py`.
    Return None if the module isn't a launcher, or doesn't launch Python.
    """
    if module not in _PARSERS:
        return None
    source = "torch.distributed.run" if module.startswith("torch.") else module
    parser = getattr(import_module(source), _PARSERS[module])()
    sys.modules.pop(source)  # it will run as __main__
    parsed: Any = parser.parse_args(arguments)
    if parsed.no_python:
        return None
    split = len(arguments) - len(parsed.training_script_args) - 1
    options = [
        option
        for option in arguments[:split]
        if not (parsed.module and option in ("-m", "--module"))
    ]
    target = ["-m", parsed.training_script] if parsed.module else [parsed.training_script]
    return [*options, "-m", "memagent", "run", *own_options, *target, *parsed.training_script_args]
