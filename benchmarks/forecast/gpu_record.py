"""Record the programs of `gpu_programs.py` on a GPU, each in processes of its own.

1. A program is run once without a limit, up to the step that decides: where it shall die, or its end.
   A program that dies gets the limit that the need of that step reaches; one that survives gets 0.5
   to 10 % more than its largest need, and more until it does survive.
2. Then it runs under that limit, and dies of torch's own error or doesn't. Host memory has a limit
   that is only declared: the recording ends where it is reached.
3. What can't be used is left out: growth under 3 %, deaths before step 40, survivors that die.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from benchmarks.forecast.gpu_run import NVML_S, PAGE, Memory, Run, Setting, host_bytes, machine
from benchmarks.forecast.program_set import Kind

DIES_AT = (0.3, 0.97)
MIN_GROWTH = 0.03
MIN_LIFE_STEPS = 40
CONTEXT_SHARE = 1 / 16
"""The models are small ones, so what a process uses outside torch's allocator counts in proportion.
Times the scale."""
RETRIES = (1.04, 1.1, 1.2, 1.4)
"""A survivor that dies gets that much more, at last all that it ever reserved."""
ATTEMPTS = 3
"""Seeds that are tried for a trace."""
DEATH_RETRIES = (1.1, 1.1)
"""A run that dies before it can be forecast gets that much more."""
TIMEOUT_S = 90.0
IN_PAGES = ("allocated", "peak", "reserved", "split", "device", "host", "garbage")
"""Columns that are kept as differences, in pages of 4 KiB."""
OTHERS = ("time", "retries", "device_row", "input", "optimizer_steps")
Columns = dict[str, list[Any]]
_CONTEXT = multiprocessing.get_context("fork")


class UnusableError(Exception):
    """The program made no trace with this seed."""


@dataclass(frozen=True)
class Play:
    """A run of a program in a process: its limit, None to see what it needs, and its last step."""

    kind: Kind
    setting: Setting
    overhead: int
    steps: int
    limit: int | None = None


@dataclass(frozen=True)
class Played:
    """What was read. `error` is torch's text if the run died."""

    columns: Columns
    error: str | None
    facts: dict[str, Any]


Plan = Generator[Play, Played, dict[str, Any]]


def setting(source: random.Random) -> Setting:
    return Setting(
        seed=source.randrange(2**32), steps=int(2 ** source.uniform(8.2, 10.9)), stretch=2 ** source.uniform(4.5, 9),
        growth=2 ** source.uniform(-3.3, 1.3), expandable=source.random() < 0.3, tells_plan=source.random() < 0.7,
        tells_epochs=source.random() < 0.4, shows_input=source.random() < 0.8,
    )  # fmt: skip


def plan(kind: Kind, number: int, overhead: int, steps: int | None = None, scale: int = 1) -> Plan:
    """Yield the runs of a trace, and return it. Raises UnusableError."""
    for attempt in range(ATTEMPTS):
        source = random.Random(f"{kind.name} {number} {attempt}")
        chosen = replace(setting(source), scale=scale)
        if steps:
            chosen = replace(chosen, steps=steps)
        play = Play(kind, chosen, overhead, chosen.steps)
        try:
            return (yield from (_dying if kind.is_dying else _living)(play, source))
        except UnusableError as error:
            reason = error
    raise reason


def _dying(play: Play, source: random.Random) -> Plan:
    last = 1 + int(source.uniform(*DIES_AT) * play.steps)
    free = yield replace(play, steps=last)
    if free.error:
        raise UnusableError(f"it needs too much without a limit: {free.error}")
    needs, host = _needs(play.kind, free.columns), free.columns["host"]
    if play.kind.cause == "host_memory":
        death = _death(host)
        ended = replace(free, columns={name: read[:death] for name, read in free.columns.items()})
        return _trace(play, ended, int(1.2 * max(needs)), max(host), death)
    _death(needs)
    limit = max(needs)
    for more in (*DEATH_RETRIES, 1):
        ended = yield replace(play, limit=limit)
        death = len(ended.columns.get("step", ()))
        if not ended.error:
            raise UnusableError("it survives")
        if death >= MIN_LIFE_STEPS:
            return _trace(play, ended, limit, _host_limit(host, source), death)
        limit = int(limit * more)
    raise UnusableError(f"it dies at step {death}")


def _living(play: Play, source: random.Random) -> Plan:
    free = yield play
    if free.error:
        raise UnusableError(f"it needs too much without a limit: {free.error}")
    limit = int(max(_needs(play.kind, free.columns)) * (1 + source.uniform(0.005, 0.1)))
    reserved = max(map(sum, zip(free.columns["reserved"], free.columns["outside"], strict=True)))
    limits = [limit, *(int(limit * more) for more in RETRIES), int(1.005 * reserved)]
    for limit in sorted(limits):
        ended = yield replace(play, limit=limit)
        if not ended.error:
            host_limit = _host_limit(free.columns["host"], source)
            return _trace(play, ended, limit, host_limit, None)
    raise UnusableError(f"it doesn't survive: {ended.error}")


def _host_limit(host: list[int], source: random.Random) -> int:
    return int(max(host) * source.choice([1.05, 1.3, 2.0]))


def _needs(kind: Kind, columns: Columns) -> list[int]:
    used = columns["reserved" if kind.cause == "fragmentation" else "peak"]
    return [own + outside for own, outside in zip(used, columns["outside"], strict=True)]


def _death(needs: list[int]) -> int:
    """Return the step that first reaches the most. Raises UnusableError if it grows too little."""
    reached = max(needs)
    death = needs.index(reached)
    if reached - max(needs[:16]) < MIN_GROWTH * reached or death < MIN_LIFE_STEPS:
        raise UnusableError(f"it grows too little up to step {death}")
    return death


def _trace(
    play: Play, played: Played, limit: int, host_limit: int, death: int | None
) -> dict[str, Any]:
    columns = played.columns
    scaled = {name: [value // PAGE for value in columns[name]] for name in IN_PAGES}
    kept = {
        name: [values[0], *(after - before for before, after in pairwise(values))]
        for name, values in (scaled | {name: columns[name] for name in OTHERS}).items()
        if any(values)
    }
    phases = [(row, phase) for row, phase in enumerate(columns["phase"]) if phase != "train"]
    chosen = play.setting
    return {
        "program": play.kind.name, "death": death, "cause": play.kind.cause, "grows": play.kind.grows, "limit": limit,
        "host_limit": host_limit, "steps": chosen.steps, "stretch": round(chosen.stretch, 1), "expandable": chosen.expandable,
        "tells_plan": chosen.tells_plan, "tells_epochs": chosen.tells_epochs, "shows_input": chosen.shows_input,
        "growth": round(chosen.growth, 3), "scale": chosen.scale, **played.facts, "error": played.error if death else None, "phases": phases,
        "columns": kept,
    }  # fmt: skip


# -- a run in its process -------------------------------------------------------------------------


def _play(play: Play, file: Path) -> None:
    """Run it and write what was read: the body of a child process."""
    configure(play.setting)
    run = Run(play.setting, Memory(play.limit, play.overhead, play.setting.scale))
    rows: list[dict[str, Any]] = []
    error = None
    try:
        _read_steps(play, run, rows)
        torch.cuda.synchronize()
    except RuntimeError as raised:
        if not _is_for_want_of_memory(raised):
            raise
        error = str(raised)
    largest = run.max_input and run.max_input * run.scale
    facts = {"epoch_steps": run.epoch_steps, "max_input": largest}
    columns = {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
    file.write_text(json.dumps({"columns": columns, "error": error, "facts": facts}))


def configure(setting: Setting) -> None:
    """Set torch up for a run, in its process."""
    if setting.expandable:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.cuda.init()
    if setting.expandable:
        _set_allocator("expandable_segments:True")
    torch.manual_seed(setting.seed)


def _is_for_want_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(
        text in str(error) for text in ("ALLOC_FAILED", "unable to find an engine")
    )


def _set_allocator(settings: str) -> None:
    """Torch may have read the environment when it was imported."""
    newer = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    (newer or torch.cuda.memory._set_allocator_settings)(settings)


def _read_steps(play: Play, run: Run, rows: list[dict[str, Any]]) -> None:
    steps = play.kind.program(run)
    device, device_row, read_at, begun = 0, 0, -NVML_S, None
    for step in range(play.steps):
        run.begin_step(step)
        next(steps)
        memory = run.memory.row()
        begun = begun or time.perf_counter()
        now = (time.perf_counter() - begun) * play.setting.stretch
        outside = play.overhead + run.memory.neighbor
        if now - read_at >= NVML_S:
            device, device_row, read_at = memory["reserved"] + outside, step, now
        rows.append(
            memory | {
                "step": step, "time": round(1e4 * now / play.setting.stretch), "outside": outside, "device": device,
                "device_row": device_row, "host": host_bytes(), "input": run.input, "phase": run.phase,
                "optimizer_steps": run.optimizer_steps, "garbage": run.garbage,
            }
        )  # fmt: skip


# -- many of them ---------------------------------------------------------------------------------


@dataclass
class _Job:
    title: str
    plan: Plan
    process: BaseProcess
    deadline: float


class Recorder:
    """Runs plans in parallel processes, and appends each trace as soon as it is made."""

    def __init__(self, file: Path, folder: Path) -> None:
        self.file, self.folder = file, folder
        self.written, self.failed = 0, 0
        self.jobs: list[_Job] = []
        self.machine: dict[str, Any] = {}

    def record(
        self, plans: Iterable[tuple[str, Callable[[], Plan]]], jobs: int, seconds: float
    ) -> None:
        ends = time.monotonic() + seconds
        waiting = deque(plans)
        while (waiting or self.jobs) and time.monotonic() < ends:
            while waiting and len(self.jobs) < jobs:
                title, begin = waiting.popleft()
                self._advance(title, begin(), None)
            soonest = min([ends, *(job.deadline for job in self.jobs)])
            sentinels = [job.process.sentinel for job in self.jobs]
            connection.wait(sentinels, max(0.0, soonest - time.monotonic()))
            for job in list(self.jobs):
                if not job.process.is_alive() or time.monotonic() > job.deadline:
                    self._end(job)
        for job in self.jobs:
            job.process.kill()
            job.process.join()
        print(
            f"{self.written} recorded, {self.failed} failed, {len(self.jobs)} stopped, {len(waiting)} not begun",
            file=sys.stderr,
        )

    def _advance(self, title: str, plan: Plan, played: Played | None) -> None:
        try:
            play = next(plan) if played is None else plan.send(played)
        except StopIteration as done:
            self.written += 1
            _append(self.file, done.value | self.machine)
            return
        except UnusableError as reason:
            self._fail(title, str(reason))
            return
        process = _CONTEXT.Process(target=_caught, args=(play, self._result_of(title)))
        process.start()
        self.jobs.append(_Job(title, plan, process, time.monotonic() + TIMEOUT_S))

    def _end(self, job: _Job) -> None:
        self.jobs.remove(job)
        was_alive = job.process.is_alive()
        job.process.kill()
        job.process.join()
        file = self._result_of(job.title)
        if was_alive or not file.exists():
            ended = "took too long" if was_alive else f"ended with {job.process.exitcode}"
            self._fail(job.title, ended)
            return
        content = json.loads(file.read_text())
        file.unlink()
        if "failure" in content:
            self._fail(job.title, content["failure"])
        else:
            self._advance(job.title, job.plan, Played(**content))

    def _result_of(self, title: str) -> Path:
        return self.folder / f"{title}.json"

    def _fail(self, title: str, reason: str) -> None:
        self.failed += 1
        print(f"{title}: {' '.join(reason.split())}", file=sys.stderr, flush=True)

    def look_at_the_machine(self, scale: int) -> int:
        """Return what a process counts as using outside torch's allocator."""
        file = self._result_of("machine")
        process = _CONTEXT.Process(target=_look, args=(file,))
        process.start()
        process.join(TIMEOUT_S)
        process.kill()
        found = json.loads(file.read_text())
        overhead = int(min(1.0, CONTEXT_SHARE * scale) * found["overhead"])
        self.machine = {"machine": found["machine"], "overhead": overhead}
        return overhead


def _look(file: Path) -> None:
    file.write_text(json.dumps(machine()))


def _caught(play: Play, file: Path) -> None:
    try:
        _play(play, file)
    except Exception:  # noqa: BLE001  whatever a program raises is reported, and the next begins
        file.write_text(json.dumps({"failure": traceback.format_exc()[-500:]}))
    sys.stdout.flush()
    os._exit(0)


def import_what_optimizers_do() -> None:
    """Import here, for all processes, what the first optimizer imports: it takes seconds each."""
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])


def _append(file: Path, trace: dict[str, Any]) -> None:
    """Append a line, compressed by itself if the file's name ends with .gz."""
    line = json.dumps(trace, separators=(",", ":")) + "\n"
    with (gzip.open if file.suffix == ".gz" else open)(file, "at") as opened:
        opened.write(line)


def record(
    kinds: list[Kind],
    file: Path,
    *,
    jobs: int,
    numbers: range,
    seconds: float,
    steps: int | None = None,
    scale: int = 1,
) -> Recorder:
    """Record a trace of every program and number into `file`, by number. A number is a seed."""
    import_what_optimizers_do()
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(file, Path(folder))
        begun = time.monotonic()
        overhead = recorder.look_at_the_machine(scale)
        plans = [
            (f"{kind.name} {number}", partial(plan, kind, number, overhead, steps, scale))
            for number in numbers
            for kind in kinds
        ]
        recorder.record(plans, jobs, seconds - (time.monotonic() - begun))
    return recorder
