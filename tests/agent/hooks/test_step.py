"""Hooks on optimizers of scripts: their arguments reach `step` as the script passed them."""

from __future__ import annotations

import pickle
import traceback

import pytest
import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.hooks import RemovableHandle

import memagent
from memagent.hooks.dispatcher import step_dispatcher


class AveragedSGD(torch.optim.SGD):
    """An optimizer whose step takes something else than a closure."""

    def step(self, loss):
        self.losses = [*getattr(self, "losses", []), loss]
        super().step()


@pytest.mark.parametrize("value", [torch.tensor(2.0), torch.nn.Linear(1, 1), lambda: 2.0])
def test_an_argument_that_is_no_closure_is_passed_on(value, recording):
    model = torch.nn.Linear(2, 1)
    optimizer = AveragedSGD(model.parameters(), lr=0.1)
    run = memagent.attach(model, optimizer)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step(value)
    run.finish()
    assert optimizer.losses[0] is value and run.step == 1


@pytest.mark.parametrize("pass_closure", [lambda step, c: step(c), lambda step, c: step(closure=c)])
def test_a_closure_is_called_and_ends_backward(pass_closure, recording):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    calls = []

    def closure():
        calls.append(run.phase if hasattr(run, "phase") else None)
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).pow(2).sum()
        loss.backward()
        return loss

    run = memagent.attach(model, optimizer)
    pass_closure(optimizer.step, closure)
    run.finish()
    assert calls and run.step == 1


class Whole(torch.optim.SGD):
    """An optimizer that is pickled with all of its attributes."""

    def __getstate__(self):
        return vars(self)


class Remembering(torch.optim.SGD):
    """An optimizer that looks at the closure it receives."""

    def step(self, closure):
        self.received = closure
        return super().step()


def test_an_optimizer_carries_nothing_of_a_run(recording):
    model = torch.nn.Linear(2, 1)
    optimizer = Whole(model.parameters(), lr=0.1)
    before, next_id = pickle.dumps(optimizer), RemovableHandle.next_id
    others = [dict(_global_optimizer_pre_hooks), dict(_global_optimizer_post_hooks)]
    run = memagent.attach(model, optimizer)
    assert pickle.dumps(optimizer) == before and RemovableHandle.next_id == next_id
    optimizer.step()
    run.finish()
    assert run.step == 1
    assert [_global_optimizer_pre_hooks, _global_optimizer_post_hooks] == others


def test_hooks_are_removed_after_an_interrupt_inside_of_one():
    def interrupt():
        raise KeyboardInterrupt

    others = dict(_global_optimizer_pre_hooks)
    remove = step_dispatcher().add_trigger(interrupt)
    with pytest.raises(KeyboardInterrupt):
        torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1).step()
    remove()
    assert _global_optimizer_pre_hooks == others


@pytest.mark.parametrize("value", [torch.tensor(2.0), lambda: 2.0])
def test_a_class_of_the_script_receives_what_the_script_passed(value, recording):
    model = torch.nn.Linear(2, 1)
    optimizer = Remembering(model.parameters(), lr=0.1)
    with memagent.attach(model, optimizer) as run:
        optimizer.step(value)
        assert optimizer.received is value
        optimizer.step(closure=value)
        assert optimizer.received is value and run.step == 2


def test_hooks_of_the_script_receive_its_closure(recording):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    received = []
    for register in (optimizer.register_step_pre_hook, optimizer.register_step_post_hook):
        register(lambda _optimizer, arguments, _keywords: received.append(arguments[1]))

    def closure():
        return model(torch.ones(1, 2)).sum()

    with memagent.attach(model, optimizer):
        optimizer.step(closure)
    assert received == [closure, closure]


def test_an_error_of_a_closure_has_no_frame_of_memagent(recording):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure():
        raise StopIteration("mine")

    with memagent.attach(model, optimizer), pytest.raises(StopIteration, match="mine") as raised:
        optimizer.step(closure)
    files = [frame.filename for frame in traceback.extract_tb(raised.tb)]
    assert not [file for file in files if "memagent/hooks" in file]


def test_a_wrapper_that_is_an_optimizer_by_name_is_looked_through(recording):
    class Lookahead(torch.optim.Optimizer):
        def __init__(self, optimizer):
            self.optimizer = optimizer
            self.param_groups = optimizer.param_groups

        def step(self, closure=None):
            return self.optimizer.step(closure)

    model = torch.nn.Linear(2, 1)
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1))
    with memagent.attach(model, optimizer) as run:
        optimizer.step()
        assert run.step == 1
