"""Repeated steps take a short way through the hooks, to the same rows as the long one."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.overrides import TorchFunctionMode

from memagent.delivery.buffer import DroppedSamples
from memagent.diagnostics import ErrorGuard
from memagent.hooks.instrumentation import ModelInstrumentation
from memagent.sampling.repetition import FULL_EVERY, READ_EVERY
from memagent.sampling.sampler import Sampler
from tests.agent.sampling.test_sampler import ReplayProbe, rows

MIB = 2**20
USUAL = 3 * FULL_EVERY + 1


class Passing(TorchFunctionMode):
    """Under any mode, forwards take the long way."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Training:
    """A model whose forward takes 200 MiB, with all hooks, on a host; `train` makes one step."""

    def __init__(self, *, is_long: bool = False) -> None:
        self.probe = ReplayProbe("host")
        self.probe.now = 500 * MIB
        self.sampler = Sampler([self.probe], DroppedSamples())
        self.sampler.has_work = False
        self.worked: list[int] = []
        self.mode = Passing if is_long else contextlib.nullcontext
        self.model = torch.nn.Linear(4, 4)
        # the agent's hooks run after those of the script
        self.model.register_forward_hook(lambda *_: self.read(700))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        guard = ErrorGuard(raise_errors=True)
        self.hooks = ModelInstrumentation(self.sampler, guard, phases=True)
        self.hooks.add_step_listeners(lambda: self.worked.append(self.sampler.step))
        # a second optimizer, which never steps, makes all steps take the long way
        others = [torch.optim.SGD(self.model.parameters())] if is_long else []
        self.hooks.begin([self.model], [self.optimizer, *others])
        self.rows: list[dict] = []

    def read(self, size: int) -> None:
        self.probe.now = size * MIB

    def train(self, what: str = "usual") -> None:
        inputs = torch.zeros(3 if what == "larger input" else 2, 4)
        if what == "evaluation":
            self.model.eval()
            self.model(inputs)
            self.model.train()
        if what == "no gradients":
            with torch.no_grad():
                self.model(inputs)
        if what == "phase of the script":
            self.sampler.set_user_phase("validation")
            self.sampler.set_user_phase(None)
        with self.mode():
            out = self.model(input=inputs) if what == "keywords" else self.model(inputs)
        out.sum().backward()
        self.read(510 if what == "ends higher" else 500)
        if what == "work":
            self.sampler.request_work()
        if what == "closure":
            self.optimizer.step(lambda: 0.0)
        elif what != "no step":
            self.optimizer.step()
        # as the collector's thread does
        self.rows += rows(self.sampler)

    def values(self) -> list[dict]:
        self.hooks.remove()
        return [
            {name: value for name, value in row.items() if name not in ("time_s", "step_s")}
            for row in self.rows
        ]


@pytest.fixture(autouse=True)
def _steps_of_any_time(monkeypatch):
    monkeypatch.setattr("memagent.sampling.sampler.MAX_STEP_S", float("inf"))


@pytest.mark.parametrize(
    "what",
    [
        *("usual", "larger input", "evaluation", "no gradients", "phase of the script"),
        *("keywords", "closure", "ends higher", "work", "no step"),
    ],
)
def test_the_short_way_ends_in_the_same_rows_as_the_long_one(what):
    found = []
    for is_long in (False, True):
        training = Training(is_long=is_long)
        for kind in (*["usual"] * USUAL, what, *["usual"] * 3):
            training.train(kind)
        found.append((training.values(), training.worked, training.sampler.samples))
    assert found[0] == found[1]
    assert found[0][1] == ([USUAL + 1] if what == "work" else [])


def test_most_steps_take_the_short_way(monkeypatch):
    training = Training()
    for _ in range(USUAL):
        training.train()
    monkeypatch.setattr(Sampler, "end_step", lambda _: pytest.fail("the long way"))
    monkeypatch.setattr(Sampler, "begin_forward", lambda *_: pytest.fail("the long way"))
    for _ in range(FULL_EVERY - 2):
        training.train()
    assert [row["step"] for row in training.rows] == list(range(1, USUAL + FULL_EVERY - 1))
    training.hooks.remove()


def test_an_error_in_the_short_way_is_the_agents_own(monkeypatch):
    training = Training()
    guard = training.hooks._guard
    guard.raise_errors = False
    for _ in range(USUAL):
        training.train()
    monkeypatch.setattr(training.probe, "mark", lambda: 1 // 0)
    for _ in range(READ_EVERY):
        training.train()
    assert guard.errors == {"after step": 1}
    training.hooks.remove()
