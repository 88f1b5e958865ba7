"""Starts a script on the device, waits for it, and returns what its process has measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from memagent.environment import AGENT_SETTINGS, REHEARSAL_FOLDER, REHEARSAL_PREFIX
from memagent.rehearsal.build import Build
from memagent.rehearsal.launch import TRACKERS_OFF, Machine, environment_of
from memagent.rehearsal.ranks import rank_environment
from memagent.rehearsal.sandbox import Sandbox

CHANGE_VARIABLE = REHEARSAL_PREFIX + "CHANGE"
_POLL_S = 0.1
_WALL_RATIO = 6.0
"""Wall time over processor time that a script may take for a step: others share the machine."""
_END_S = 15.0
"""Time that a script has to end after an interrupt."""


@dataclass(frozen=True)
class Script:
    """A script with its arguments, and the steps after which it is ended; None: as needed."""

    target: str
    arguments: Sequence[str] = ()
    is_module: bool = False
    steps: int | None = None
    patience_s: float = 600.0
    """Processor time without a step after which the script is ended; see `is_stuck`."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables beside those of this process."""
    change: str = ""
    """Key of a change in the script's process, of those in `script_changes`."""
    is_silent: bool = False
    """True to drop the script's output."""

    def command(self, sandbox: Sandbox, ranks: int) -> list[str]:
        return [
            *(sys.executable, "-m", "memagent.cli.device_process", str(sandbox.state)),
            *(str(self.steps or 0), str(ranks), "module" if self.is_module else "file"),
            *(sandbox.inside(text) for text in (self.target, *self.arguments)),
        ]


def run_script(
    script: Script,
    build: Build,
    machine: Machine,
    sandbox: Sandbox,
    on_state: Callable[[Mapping[str, Any]], None],
) -> dict[str, Any]:
    """Return the last state of the script's process, which shares this one's input."""
    inherited = {**os.environ, **script.variables}
    environment = {
        **environment_of(script_environment(inherited, sandbox), build, machine),
        **rank_environment(machine.ranks, machine.count),
        CHANGE_VARIABLE: script.change,
        REHEARSAL_FOLDER: str(sandbox.tree),
        REHEARSAL_PREFIX + "WRITES": str(sandbox.writes),
    }
    output = subprocess.DEVNULL if script.is_silent else None
    process = subprocess.Popen(  # noqa: S603  # the user's own script
        script.command(sandbox, machine.ranks),
        cwd=sandbox.folder,
        env=environment,
        stdout=output,
        stderr=output,
    )
    sandbox.scratch.add_process(process.pid)
    try:
        reason = _wait(process, sandbox, script.patience_s, on_state)
    except KeyboardInterrupt:
        reason = "interrupted"
    finally:
        _end(process)
    state = read_state(sandbox)
    if state.get("status") in (None, "running", "interrupted"):
        state["status"] = reason or "killed"
    return {"status": "killed", "steps": 0, "devices": [], **state, "exit": process.returncode}


def script_environment(environment: Mapping[str, str], sandbox: Sandbox) -> dict[str, str]:
    """Return the script's environment: no trackers, no server, and its folder.

    Settings of the agent would be checked or used by the agent in the script's process.
    """
    inherited = {key: value for key, value in environment.items() if key not in AGENT_SETTINGS}
    offline = environment.get("HF_HUB_OFFLINE", TRACKERS_OFF["HF_HUB_OFFLINE"])
    return {
        **inherited,
        **TRACKERS_OFF,
        "HF_HUB_OFFLINE": offline,
        "MLFLOW_TRACKING_URI": (sandbox.scratch.folder / "mlflow").as_uri(),
        "MEMAGENT_DIR": str(sandbox.records),
        "PWD": str(sandbox.folder),
    }


def read_state(sandbox: Sandbox) -> dict[str, Any]:
    """Return what the script's process wrote last; an empty dict before its first step."""
    with suppress(OSError, ValueError):
        state: dict[str, Any] = json.loads(sandbox.state.read_text())
        return state
    return {}


def is_stuck(wall_s: float, processor_s: float, patience_s: float) -> bool:
    """Return True for a script that made no step in this time.

    1. It has computed for longer than the patience: a busy machine only delays it.
    2. It waits, for six times as long: a deadlock computes nothing.
    3. Threads that compute at once don't shorten its time.
    """
    return wall_s > patience_s and max(processor_s, wall_s / _WALL_RATIO) > patience_s


def processor_s(pid: int) -> float:
    """Return the processor time of a process and of its descendants, ended ones included."""
    import psutil  # slow to import, and the script's process imports this module

    total = 0.0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                total += sum(one.cpu_times()[:4])  # user, system, and those of ended children
    return total


def _wait(
    process: subprocess.Popen[bytes],
    sandbox: Sandbox,
    patience_s: float,
    on_state: Callable[[Mapping[str, Any]], None],
) -> str | None:
    """Wait for the end of the process. Return why it has to be ended, or None."""
    # Called before the first step: an interrupt within its import of psutil would end this process
    # although it's handled (unhandled_keyboard_interrupt in CPython's pythonrun.c).
    steps, moved_at, used_s = 0, time.monotonic(), processor_s(process.pid)
    while process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_S)
        state = read_state(sandbox)
        on_state(state)
        if state.get("steps", 0) > steps:
            steps, moved_at = state["steps"], time.monotonic()
            used_s = processor_s(process.pid)
        wall_s = time.monotonic() - moved_at
        if wall_s > patience_s and is_stuck(wall_s, processor_s(process.pid) - used_s, patience_s):
            return "stuck"
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the process if it hasn't ended, then kill it."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(_END_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()
