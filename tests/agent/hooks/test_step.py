"""Hooks on optimizers of scripts: their arguments reach `step` as the script passed them."""

from __future__ import annotations

import pytest
import torch

import memagent


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
