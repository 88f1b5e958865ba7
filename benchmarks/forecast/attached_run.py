"""Program of `gpu_trainings.py` with memagent attached: verdicts of its leak finder.

The process of `finder_record.py` is a script of its own, as the finder reads sources.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import memagent
from benchmarks.forecast.gpu_run import Memory, Run, Setting
from benchmarks.forecast.program_set import Program
from memagent.delivery.run_file import read_frames
from memagent.wire.codec import decode
from memagent.wire.messages import Batch, Event

STEP_S = 0.04
"""Least seconds of a step. The agent forecasts four times a second, and the rehearsed kernels take no
time: with steps of 5 ms, each forecast would come 50 steps late."""
RESULT, STDERR = "result.json", "stderr"
_PRINTED = re.compile(r"^\W*(?:memagent: )?(NOTICE|WARNING): step ([\d,]+)", re.MULTILINE)


@dataclass(frozen=True)
class Order:
    """Setting and limit of the run, what a process uses beside torch, and a folder for results."""

    setting: Setting
    limit: int
    overhead: int
    folder: Path


order: Order | None = None
"""Run of this process: its script calls `main`."""


class AttachedRun(Run):
    """Run whose first update attaches memagent, with the plan that the script has."""

    def __init__(self, setting: Setting, memory: Memory) -> None:
        super().__init__(setting, memory)
        self.agent: Any = None
        self.held = 0
        """Bytes at the agent's newest step, which ends before its gradients are freed."""
        self._models: list[nn.Module] = []
        self._optimizers: list[torch.optim.Optimizer] = []

    def ready(self, *models: nn.Module) -> list[nn.Parameter]:
        self._models += models
        return super().ready(*models)

    def update(self, loss: Tensor, *optimizers: torch.optim.Optimizer) -> None:
        if self.agent is None:
            self._attach(optimizers)
        super().update(loss, *optimizers)

    @contextlib.contextmanager
    def evaluation(self, phase: str = "eval") -> Iterator[None]:
        named = self.agent.phase(phase) if self.agent else contextlib.nullcontext()
        with named, super().evaluation(phase):
            yield

    def _attach(self, optimizers: tuple[torch.optim.Optimizer, ...]) -> None:
        told = {"epoch_steps": self.epoch_steps, "max_input_size": self.max_input}
        self.agent = memagent.attach(
            self._models,
            list(optimizers),
            config={name: value for name, value in told.items() if value}
            if self.setting.tells_epochs
            else None,
            total_steps=self.steps if self.setting.tells_plan else None,
            predict=False,
        )
        optimizers[-1].register_step_post_hook(self._read)

    def _read(self, *_: Any) -> None:
        self.held = torch.cuda.memory_allocated()


def main(program: Program) -> None:
    """Run the program by `order`, and write what was found."""
    assert order is not None
    setting = order.setting
    run = AttachedRun(setting, Memory(order.limit, order.overhead, setting.scale))
    steps, held, death = list[int](), list[int](), None
    training = program(run)
    try:
        for row in range(setting.steps):
            ends = time.monotonic() + STEP_S
            run.begin_step(row)
            next(training)
            steps.append(run.agent.step if run.agent else 0)
            held.append(run.held)
            time.sleep(max(0.0, ends - time.monotonic()))
    except torch.OutOfMemoryError as error:
        print(error, file=sys.stderr)
        death = len(steps)
    if run.agent is None:
        raise RuntimeError(f"{program.__name__} never calls update: nothing is attached")
    run.agent.finish("failed" if death else "completed")
    sys.stderr.flush()
    result = {"rows": len(steps), "death": death, **_found(order.folder, steps, held)}
    (order.folder / RESULT).write_text(json.dumps(result))


def _found(folder: Path, steps: list[int], held: list[int]) -> dict[str, Any]:
    """Return the rows of verdicts, diagnoses and warnings."""
    found: list[list[Any]] = []
    states: list[list[Any]] = []
    for event in _events(folder):
        row = min(bisect_left(steps, event.step), len(steps) - 1)
        if event.kind == "diagnosis":
            states.append([row, event.data["state"]])
        elif event.kind == "hints":
            for device, grows in event.data.get("grows", {}).items():
                # hints keep the end of a buffer that is none any more
                ends = event.data.get("growth_end_bytes", {}) if grows == "buffer" else {}
                rest = None
                if end := ends.get(device):
                    rest = round((end - held[row]) / max(1, max(held) - held[row]), 2)
                if not found or found[-1][1:] != [grows, rest]:
                    found.append([row, grows, rest])
    printed = _PRINTED.findall((folder / STDERR).read_text())
    heard = {level: int(step.replace(",", "")) for level, step in reversed(printed)}
    rows = {level: bisect_left(steps, step) for level, step in heard.items()}
    return {
        "found": found,
        "states": states,
        "notice": rows.get("NOTICE"),
        "page": rows.get("WARNING"),
    }


def _events(folder: Path) -> Iterator[Event]:
    (file,) = folder.glob("*.memagent")
    for kind, body in read_frames(file):
        if kind == "batch":
            yield from decode(body, Batch).events
