"""Training process on a GPU, as the programs of `gpu_programs.py` see it and as an agent reads it.

The card is shared by the recordings, so a run has a device of its own only in part: torch limits the
process to it (`set_per_process_memory_fraction`), and a neighbor on it is memory taken off that limit.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

MIB = 2**20
PAGE = 4096
NVML_S = 1.0
FREE_BYTES = 12 * 2**30
"""What a run without a limit may use: more is a mistake, and other runs share the card."""
MIN_BASE = 16 * MIB


@dataclass(frozen=True)
class Setting:
    """What differs between two runs of one program."""

    seed: int
    steps: int
    stretch: float
    """Seconds of the recording for each second of the run: its steps are short ones."""
    growth: float
    """Bytes that the program's mechanism adds over all planned steps, as a share of the base."""
    expandable: bool
    tells_plan: bool
    tells_epochs: bool
    shows_input: bool
    scale: int = 1
    """Factor on the rows of each batch: large ones cost nothing on the rehearsal device."""


class Memory:
    """The process's part of the device. `overhead` is what it uses outside torch's allocator."""

    def __init__(self, limit: int | None, overhead: int, scale: int = 1) -> None:
        self.limit, self.overhead, self.neighbor = limit, overhead, 0
        self._most = FREE_BYTES * scale
        self._total = torch.cuda.get_device_properties(0).total_memory
        self.use_neighbor(0)

    def use_neighbor(self, size: int) -> None:
        """Let another process use `size` bytes, or what is left of the device."""
        allowed = self._most
        if self.limit is not None:
            own = self.limit - self.overhead
            size = max(0, min(size, own - torch.cuda.memory_reserved()))
            allowed = max(0, own - size)
        self.neighbor = size
        torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / self._total), 0)

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated()

    def begin_step(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def row(self) -> dict[str, int]:
        stats = torch.cuda.memory_stats_as_nested_dict()
        return {
            "allocated": stats["allocated_bytes"]["all"]["current"],
            "peak": stats["allocated_bytes"]["all"]["peak"],
            "reserved": stats["reserved_bytes"]["all"]["current"],
            "split": stats["inactive_split_bytes"]["all"]["current"],
            "retries": stats["num_alloc_retries"],
        }


class Run:
    """What a program has: sizes by seed, batches, the optimizer's step, evaluations.

    Programs call its methods and yield after each optimizer step.
    """

    def __init__(self, setting: Setting, memory: Memory, device: str = "cuda") -> None:
        self.setting, self.memory, self.device = setting, memory, device
        self.source = random.Random(setting.seed)
        self.steps, self.step, self.optimizer_steps = setting.steps, 0, 0
        self.epoch_steps: int | None = None
        self.max_input: int | None = None
        """Elements of the largest batch, before `scale`."""
        self.input, self.phase, self.garbage = 0, "train", 0
        self.scale = setting.scale
        self.width = 64 * self.source.randint(2, 8)
        self.layers = self.source.randint(2, 4)
        self.rows = 4 * self.source.randint(1, 6)
        self._peak, self._base = 0, 0

    @property
    def base(self) -> int:
        """Bytes that the training needed when this was first asked: ask after a step."""
        if not self._base:
            self._base = max(MIN_BASE, self._peak, self.memory.peak())
        return self._base

    @property
    def unit(self) -> float:
        """Bytes that the program's mechanism adds a step."""
        return max(PAGE, self.base * self.setting.growth / self.steps)

    def ready(self, *models: nn.Module) -> list[nn.Parameter]:
        """Move the models to the device and return their parameters."""
        return [one for model in models for one in model.to(self.device).parameters()]

    def tokens(self, length: int, rows: int | None = None) -> Tensor:
        shape = (self.scale * (rows or self.rows), length)
        self.input = max(self.input, shape[0] * length)
        return torch.randint(0, 4096, shape, device=self.device)

    def images(self, size: int, rows: int | None = None) -> Tensor:
        shape = (self.scale * (rows or 4 * self.rows), 3, size, size)
        self.input = max(self.input, shape[0] * size * size)
        return torch.randn(shape, device=self.device)

    def vectors(self, rows: int, width: int) -> Tensor:
        shape = (self.scale * rows, width)
        self.input = max(self.input, shape[0])
        return torch.randn(shape, device=self.device)

    def update(self, loss: Tensor, *optimizers: torch.optim.Optimizer) -> None:
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.optimizer_steps += 1

    def copied(self, tensor: Tensor, size: float) -> Tensor:
        """Return a copy of about `size` bytes of the tensor's values, repeated where it has fewer."""
        values = tensor.detach().flatten()
        count = max(1, int(size / values.element_size()))
        return values[:count].clone() if count <= len(values) else self._repeated(values, count)

    def attached(self, tensor: Tensor, size: float) -> Tensor:
        """Return a value whose graph keeps about `size` bytes."""
        source = tensor.flatten()
        count = max(1, int(size / source.element_size()))
        if count > len(source):
            source = source.repeat(-(-count // len(source)))
        return source[:count].exp().mean()

    @contextmanager
    def evaluation(self, phase: str = "eval") -> Iterator[None]:
        """The row is of this phase if the phase makes its peak. Its batches aren't the training's."""
        before, size = self.memory.peak(), self.input
        with torch.no_grad():
            yield
        self.input = size
        if self.memory.peak() > before:
            self.phase = phase

    def length(self, longest: int = 128) -> Callable[[], int]:
        """Return how this script's batches vary: not at all, padded, or with a long tail."""
        self.max_input = self.rows * longest
        ways = (
            lambda: longest,
            lambda: max(16, int(longest * self.source.betavariate(4, 2))),
            lambda: min(longest, max(16, int(longest * self.source.lognormvariate(-0.9, 0.35)))),
        )
        return self.source.choice(ways)

    def every(self, low: int, high: int, least: int = 5) -> int:
        """Return steps between events, of which there are `low` to `high`."""
        return max(least, self.steps // self.source.randint(low, high))

    def begin_step(self, step: int) -> None:
        self._peak = max(self._peak, self.memory.peak())
        self.step, self.input, self.phase = step, 0, "train"
        self.memory.begin_step()

    @staticmethod
    def _repeated(values: Tensor, count: int) -> Tensor:
        return values.repeat(-(-count // len(values)))[:count].clone()


def host_bytes() -> int:
    return PAGE * int(Path("/proc/self/statm").read_text().split()[1])


def machine() -> dict[str, Any]:
    """Describe the device, with what a process uses of it outside torch's allocator.

    No other process may use the device meanwhile.
    """
    image = torch.randn(4, 3, 32, 32, device="cuda")
    weight = torch.randn(8, 3, 3, 3, device="cuda", requires_grad=True)
    torch.nn.functional.conv2d(image, weight).square().mean().backward()
    (image.flatten(1) @ image.flatten(1).T).sum().item()
    free, total = torch.cuda.mem_get_info()
    rehearsed = "rehearsed " if "MEMAGENT_REHEARSAL_NAME" in os.environ else ""
    return {
        "machine": f"{rehearsed}{torch.cuda.get_device_name(0)}, torch {torch.__version__}",
        "overhead": max(0, total - free - torch.cuda.memory_reserved()),
    }
