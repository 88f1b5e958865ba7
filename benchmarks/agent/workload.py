"""Training workloads for the agent's benchmarks. All use one thread, so that no idle core hides a
cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Workload:
    """A model, its optimizer, and `step`, which makes one optimizer step."""

    name: str
    model: Any
    optimizer: Any
    step: Callable[[], None]
    wait: Callable[[], None] | None = None
    """Wait until the device has finished; None if a step is finished when `step` returns."""

    def times(self, steps: int) -> list[float]:
        """Return the seconds of each of `count` steps. If steps outlive their call, return their
        mean that many times.
        """
        if self.wait is not None:
            return self._mean_times(self.wait, steps)
        times, clock, step = [], time.perf_counter, self.step
        for _ in range(steps):
            began = clock()
            step()
            times.append(clock() - began)
        return times

    def _mean_times(self, wait: Callable[[], None], steps: int) -> list[float]:
        wait()
        began = time.perf_counter()
        for _ in range(steps):
            self.step()
        wait()
        return [(time.perf_counter() - began) / steps] * steps


def empty() -> Workload:
    """A loop that computes nothing: hooks cost what they cost with warm caches."""
    _settle()
    model = torch.nn.Identity()
    model.weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    inputs = torch.zeros(64, 256)

    def step() -> None:
        model(inputs)
        optimizer.step()

    return Workload("a loop that computes nothing", model, optimizer, step)


def small() -> Workload:
    """A step of about a millisecond whose 2 MB of parameters and optimizer state stay in the
    processor's cache.
    """
    return _mlp("a 1 ms step (MLP in cache)", width=512, batch=64)


def wide() -> Workload:
    """A step whose optimizer streams 20 MB through the caches, so that all other code finds them
    cold: the worst case, and a common one.
    """
    return _mlp("a step that empties the caches (wide MLP)", width=4096, batch=64)


def ten_milliseconds() -> Workload:
    """A small transformer with the batch size that takes about 10 ms a step."""
    _settle()
    width, tokens = 128, 64
    layers = [
        torch.nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        for _ in range(2)
    ]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 256))
    optimizer = torch.optim.AdamW(model.parameters())
    batch, took = 1, 0.0
    while batch < 64:
        inputs = torch.randn(batch, tokens, width)
        step = _step(model, optimizer, inputs)
        # the batch must not depend on what else runs on the machine
        began = time.thread_time()
        Workload("", model, optimizer, step).times(15)
        took = (time.thread_time() - began) / 15
        if took > 0.008:
            break
        batch += max(1, min(batch, int(batch * (0.010 / took - 1))))
    return Workload(f"a 10 ms step (transformer, batch {batch})", model, optimizer, step)


def _mlp(name: str, *, width: int, batch: int) -> Workload:
    _settle()
    model = torch.nn.Sequential(
        torch.nn.Linear(256, width), torch.nn.ReLU(), torch.nn.Linear(width, 64)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    return Workload(name, model, optimizer, _step(model, optimizer, torch.randn(batch, 256)))


def _step(model: Any, optimizer: Any, inputs: Any) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        model(inputs).pow(2).mean().backward()
        optimizer.step()

    return step


def _settle() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
