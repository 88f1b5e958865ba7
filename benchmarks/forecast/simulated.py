"""Traces of training programs (`programs.py`, `mechanisms.py`) on the simulator of torch's caching allocator.

1. A program is run once without a limit, which shows what each step needs. Programs that die get
   the limit that the need of a step between DIES_AT of the planned steps reaches; those that
   survive get 0.5 to 10 % more than their largest need (GPUs are filled), and more until they do.
2. Then it runs under that limit. It dies where the simulated allocator finds no memory after its
   retries, or where the host's limit is reached: no run is labelled.
3. Readings are those of an agent: allocated and peak bytes by step, reserved, inactive split,
   retries; the device's use from NVML is at most a second old.
4. Half of the programs are for tuning and half only for scoring, chosen at random before any was
   run (`program_set`). Seeds vary sizes, lengths and limits of a program, not the program.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.forecast.program_set import Kind, Program
from benchmarks.forecast.traces import Trace
from memagent.estimator.allocator import AllocatorConfig, CachingAllocator, SimulatedOutOfMemory
from memagent.estimator.allocator.device import Device

MIB, GIB = 2**20, 2**30
DIES_AT = (0.3, 0.97)
MIN_GROWTH = 0.03
"""Share of the limit that a dying run grows at least; less can't be told from noise."""
MIN_LIFE_STEPS = 40
"""A run that dies before can't be forecast: its limit was too small for what can't be used."""
NVML_S = 1.0
COLUMNS = (
    "step", "time_s", "allocated_bytes", "peak_allocated_bytes", "reserved_bytes", "inactive_split_bytes", "alloc_retries_total",
    "device_used_bytes", "host_rss_bytes", "input_size", "phase", "optimizer_steps",
)  # fmt: skip


@dataclass
class Setting:
    """What differs between two runs of one program."""

    seed: int
    steps: int
    step_s: float
    growth: float
    """Bytes that the program's mechanism adds over all planned steps, as a share of the base."""
    expandable: bool
    tells_plan: bool
    tells_epochs: bool
    rerun: str = ""
    """Another seed of all that differs between two runs of one configuration, if any."""


@dataclass
class Run:
    """A simulated training process. Programs call its methods and yield after each step."""

    setting: Setting
    limit: int | None = None
    host_limit: int | None = None
    source: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.source = source = random.Random(self.setting.seed)
        self.context = source.randint(350, 700) * MIB
        self.device = Device(None if self.limit is None else self.limit)
        config = AllocatorConfig.parse(
            "expandable_segments:True" if self.setting.expandable else None
        )
        self.memory = CachingAllocator(config, device=self.device)
        self.layers = source.randint(4, 7)
        self.width = int(2 ** source.uniform(23, 27.5))
        """Bytes of a layer's parameters."""
        self.activation = int(self.width * source.uniform(0.5, 4))
        """Bytes of a layer's activations at input size 1."""
        self.power = source.choice([1.0, 1.0, 1.5])
        self.steps, self.step = self.setting.steps, 0
        self.is_rerun = False
        self.warm_up = source.choice([0, 0, 1, 7])
        """Step of the first optimizer step."""
        self.epoch_steps: int | None = None
        self.input, self.phase, self.garbage = 1.0, "train", 0
        self.max_input: float | None = None
        self.shown_input = source.random() < 0.8
        self.neighbor = 0
        self.host = self.host_base = int(source.uniform(2, 12) * GIB)
        self.host_noise = source.choice([0.0, 1e-4, 1e-3])
        self.parameters = [self.allocate(self.width) for _ in range(self.layers)]
        self.state: list[int] = []
        self.base = self.width * self.layers * 4 + 2 * self.activation * self.layers
        self.unit = max(4096, int(self.base * self.setting.growth / self.steps))
        """Bytes a step that the program's mechanism adds."""
        self.host_unit = max(4096, int(self.host_base * self.setting.growth / self.steps))

    def allocate(self, size: float) -> int:
        return self.memory.malloc(max(512, int(size)))

    def free(self, *blocks: int) -> None:
        for block in blocks:
            self.memory.free(block)

    def use_neighbor(self, size: float) -> None:
        """Let another process use `size` bytes of the device."""
        self.neighbor = int(size)
        if self.limit is not None:
            self.device.limit = self.limit - self.context - self.neighbor

    def forward(self, length: float = 1.0, layers: int | None = None) -> list[int]:
        """Allocate what a forward pass saves, with a temporary for each layer."""
        if self.setting.rerun and not self.is_rerun:
            self.is_rerun = True  # the program has drawn its configuration by now
            self.source = random.Random(f"{self.setting.seed} {self.setting.rerun}")
        size = self.activation * length**self.power
        saved = []
        for _ in range(layers or self.layers):
            temporary = self.allocate(0.6 * size)
            saved += [self.allocate(0.7 * size), self.allocate(0.3 * size)]
            self.free(temporary)
        return saved

    def backward(self, saved: list[int], length: float = 1.0) -> list[int]:
        """Free what was saved, latest first, and return the gradients."""
        size = self.activation * length**self.power
        gradients = []
        while saved:
            grad = self.allocate(0.7 * size)
            for _ in range(min(2, len(saved))):
                self.free(saved.pop())
            if len(gradients) < self.layers:
                gradients.append(self.allocate(self.width))
            self.free(grad)
        return gradients

    def train(self, length: float = 1.0) -> None:
        """Run a training step whose input has this size."""
        self.input, self.phase = length, "train"
        self.optimize(self.backward(self.forward(length), length))

    def optimize(self, gradients: list[int]) -> None:
        if self.step >= self.warm_up and not self.state:
            self.state = [self.allocate(2 * self.width) for _ in range(self.layers)]
        temporary = self.allocate(self.width)
        self.free(temporary, *gradients)

    def evaluate(self, length: float = 1.0, batches: int = 2) -> None:
        """Run an evaluation after the step: it saves nothing, but keeps its outputs till its end."""
        self.phase = "eval"
        outputs = []
        for _ in range(batches):
            size = 2 * self.activation * length
            first, second = self.allocate(size), self.allocate(size)
            self.free(first, second)
            outputs.append(self.allocate(size / 8))
        self.free(*outputs)

    def padded(self) -> float:
        """Return a length of a padded batch, at most 1."""
        return max(0.15, self.source.betavariate(4, 2))

    def lognormal(self) -> float:
        return min(1.0, max(0.1, self.source.lognormvariate(-0.9, 0.35)))


def traces(kinds: list[Kind], each: int, seed: int = 0) -> Iterator[Trace]:
    """Return `each` runs of every program, in the order of `kinds`."""
    for _, _, trace in runs(kinds, each, seed):
        yield trace


def runs(kinds: list[Kind], each: int, seed: int = 0) -> Iterator[tuple[Kind, Setting, Trace]]:
    """Return the same with their programs and settings."""
    for kind in kinds:
        made, attempt = 0, 0
        while made < each and attempt < 8 * each:
            source = random.Random(f"{kind.name} {seed} {attempt}")
            setting = _setting(source)
            trace = _trace(kind, setting, source)
            attempt += 1
            if trace is not None:
                made += 1
                yield kind, setting, trace


def rerun(kind: Kind, setting: Setting, limit: int, host_limit: int | None) -> Trace:
    """Return what becomes of a setting under these limits."""
    run = Run(setting, limit, host_limit)
    run.use_neighbor(0)
    return _as_trace(kind, run, *_columns(run, kind.program))


def _setting(source: random.Random) -> Setting:
    return Setting(
        seed=source.randrange(2**32), steps=int(2 ** source.uniform(7.3, 11.3)), step_s=2 ** source.uniform(-3, 2),
        growth=2 ** source.uniform(-3.3, 1.3), expandable=source.random() < 0.3,
        tells_plan=source.random() < 0.7, tells_epochs=source.random() < 0.4,
    )  # fmt: skip


def _trace(kind: Kind, setting: Setting, source: random.Random) -> Trace | None:
    free = Run(setting)
    needs, host = [], []
    for row in _rows(free, kind.program):
        used = "reserved_bytes" if kind.cause == "fragmentation" else "peak_allocated_bytes"
        needs.append(row[used] + free.context + free.neighbor)
        host.append(row["host_rss_bytes"])
    is_host = kind.cause == "host_memory"
    limit = int(max(needs) * (1 + source.uniform(0.005, 0.1)))
    host_limit = int(max(host) * source.choice([1.01, 1.05, 1.3, 2.0]))
    if kind.cause is not None:
        series = host if is_host else needs
        step = int(source.uniform(*DIES_AT) * len(series))
        reached = max(series[: step + 1])
        if reached - max(series[:16]) < MIN_GROWTH * reached or step < MIN_LIFE_STEPS:
            return None
        if is_host:
            host_limit = reached
            limit = int(max(needs) * 1.2)
        else:
            limit = reached
    for _ in range(12):
        run = Run(setting, limit, host_limit)
        run.use_neighbor(0)
        columns, death = _columns(run, kind.program)
        if kind.cause is not None and (death is None or death < MIN_LIFE_STEPS):
            return None
        if (death is None) == (kind.cause is None):
            return _as_trace(kind, run, columns, death)
        limit = int(limit * 1.03)
        if is_host:
            return None
    return None


def _columns(run: Run, program: Program) -> tuple[dict[str, list[Any]], int | None]:
    columns: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, "garbage")}
    try:
        for row in _rows(run, program):
            if run.host_limit is not None and row["host_rss_bytes"] > run.host_limit:
                return columns, run.step
            for name, value in row.items():
                columns[name].append(value)
    except SimulatedOutOfMemory:
        return columns, run.step
    return columns, None


def _rows(run: Run, program: Program) -> Iterator[dict[str, Any]]:
    steps = program(run)
    device_used, read_at = 0, -NVML_S
    for step in range(run.steps):
        run.step = step
        run.memory.reset_peak()
        next(steps)
        stats, now = run.memory.stats, step * run.setting.step_s
        if now - read_at >= NVML_S:
            read_at = now
            device_used = run.memory.reserved + run.context + run.neighbor
        yield {
            "step": step, "time_s": now, "allocated_bytes": run.memory.allocated, "peak_allocated_bytes": run.memory.peak_allocated,
            "reserved_bytes": run.memory.reserved, "inactive_split_bytes": stats.inactive_split_bytes.all.current,
            "alloc_retries_total": stats.num_alloc_retries, "device_used_bytes": device_used,
            "host_rss_bytes": int(run.host * (1 + run.source.gauss(0, 1) * run.host_noise)),
            "input_size": round(1e6 * run.input) if run.shown_input else None, "phase": run.phase,
            "optimizer_steps": max(0, step - run.warm_up + 1), "garbage": run.garbage,
        }  # fmt: skip


def _as_trace(kind: Kind, run: Run, columns: dict[str, list[Any]], death: int | None) -> Trace:
    assert run.limit is not None
    garbage = columns.pop("garbage")
    if not run.shown_input:
        del columns["input_size"]
    options: dict[str, Any] = {
        "host_limit_bytes": run.host_limit,
        "total_steps": run.steps if run.setting.tells_plan else None,
        "epoch_steps": run.epoch_steps if run.setting.tells_epochs else None,
        "max_input_size": 1e6 * run.max_input if run.max_input and run.setting.tells_epochs else None,
    }  # fmt: skip
    return Trace(
        kind.name,
        run.limit,
        columns,
        death,
        kind.cause,
        death is not None,
        options,
        garbage,
        kind.grows,
    )
