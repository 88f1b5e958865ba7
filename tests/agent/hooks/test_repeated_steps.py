"""Repeated steps take a short way through the hooks, to the same rows as the long one."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.overrides import TorchFunctionMode

import memagent
from memagent.delivery.buffer import DroppedSamples
from memagent.diagnostics import ErrorGuard
from memagent.hooks.instrumentation import ModelInstrumentation
from memagent.hooks.phase import AfterForwardHook, BeforeForwardHook
from memagent.sampling.repetition import FULL_EVERY
from memagent.sampling.sampler import Sampler
from tests.agent.sampling.test_sampler import ReplayProbe, rows

MIB = 2**20
USUAL = 3 * FULL_EVERY + 1


class Passing(TorchFunctionMode):
    """Under any mode, forwards take the long way."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Reading(torch.nn.Linear):
    def forward(self, input):  # noqa: A002 - by its name in torch
        self.read()
        return super().forward(input)


class Training:
    """A model whose forward takes 200 MiB, with all hooks, on a host; `train` makes one step."""

    def __init__(self, *, is_long: bool = False) -> None:
        self.probe = ReplayProbe("host")
        self.probe.now = 500 * MIB
        self.sampler = Sampler([self.probe], DroppedSamples())
        self.sampler.has_work = False
        self.worked: list[int] = []
        self.mode = Passing if is_long else contextlib.nullcontext
        self.model = Reading(4, 4)
        self.model.read = lambda: self.read(700)
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


UNREAD = (
    "usual",
    "evaluation",
    "no gradients",
    "phase of the script",
    "keywords",
    "closure",
    "work",
)


@pytest.fixture(autouse=True)
def read_every(monkeypatch):
    """Return a function that sets the seconds between readings of repeated steps, by default 0."""
    monkeypatch.setattr("memagent.sampling.sampler.MAX_STEP_S", float("inf"))

    def read_every(seconds: float) -> None:
        monkeypatch.setattr("memagent.sampling.sampler.READ_EVERY_S", seconds)

    read_every(0.0)
    return read_every


@pytest.mark.parametrize(
    ("what", "seconds"),
    [
        *((what, 0.0) for what in (*UNREAD, "larger input", "ends higher", "no step")),
        *((what, float("inf")) for what in UNREAD),
    ],
)
def test_the_short_way_ends_in_the_same_rows_as_the_long_one(what, seconds, read_every):
    read_every(seconds)
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


def test_a_step_that_is_not_read_has_no_hook_before_its_end(read_every, monkeypatch):
    read_every(float("inf"))
    training = Training()
    for _ in range(USUAL):
        training.train()
    assert training.sampler.is_unread
    for hook in (BeforeForwardHook, AfterForwardHook):
        monkeypatch.setattr(hook, "__call__", lambda *_: pytest.fail("a hook"))
    training.train("larger input")
    assert training.rows[-1]["input_size"] == 8
    training.hooks.remove()


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer"])
def test_an_out_of_memory_in_an_unread_step_has_its_phase(phase, training, read_every):
    """By the frames of the error: hooks don't tell it."""
    model, optimizer, step = training
    run = memagent.attach(model, optimizer, predict=False)
    sampler = run._pipeline.sampler
    read_every(float("inf"))
    while not sampler.is_unread:
        step()

    def fail(*_):
        raise MemoryError

    if phase == "forward":
        model[1].forward = fail
    elif phase == "backward":
        model[2].weight.register_hook(fail)
    elif phase == "optimizer":
        optimizer._init_group = fail
    with pytest.raises(MemoryError) as caught:
        step() if phase != "data" else fail()
    event = run._pipeline.oom.build_event(caught.value, (), {}, [])
    run.finish()
    assert event.data["phase"] == phase


def test_an_error_in_the_short_way_is_the_agents_own(monkeypatch):
    training = Training()
    guard = training.hooks._guard
    guard.raise_errors = False
    for _ in range(USUAL):
        training.train()
    monkeypatch.setattr(training.probe, "mark", lambda: 1 // 0)
    for _ in range(2):  # the first after a full one isn't read
        training.train()
    assert guard.errors == {"after step": 1}
    training.hooks.remove()
