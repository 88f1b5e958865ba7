"""Changes of the optimizer's step leave its results as they are."""

from __future__ import annotations

import copy
import io

import pytest
import torch

from memagent.estimator.trace.events import Trace
from memagent.estimator.trace.tracing import record_trace
from memagent.fitting.optimizer_changes import can_loop, keep_states_on_host, step_in_a_loop
from tests.agent.fitting.conftest import Residual


def trained(model: Residual, change, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    change(optimizer)
    for _ in range(3):
        model(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize("change", [step_in_a_loop, keep_states_on_host])
def test_three_steps_train_the_same_weights(change, residual: Residual, rows) -> None:
    plain = trained(residual, lambda _: None, rows)
    own = trained(residual, change, rows)
    assert all(torch.allclose(own[name], plain[name], rtol=1e-5) for name in plain)


def test_an_optimizer_loops_once_and_returns() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter])
    assert can_loop(optimizer)
    undo = step_in_a_loop(optimizer)
    assert not can_loop(optimizer)
    undo()
    assert optimizer.param_groups[0]["foreach"] is None
    assert not can_loop(torch.optim.AdamW([parameter], fused=True))
    assert not can_loop(torch.optim.LBFGS([parameter]))


def bytes_between_steps(trace: Trace) -> int:
    sizes = (
        event.size_bytes if event.kind == "alloc" else -event.size_bytes
        for event in trace.events
        if event.step == 0
    )
    return sum(sizes)


def test_states_take_no_memory_of_the_device_between_steps(residual: Residual, rows) -> None:
    optimizer = torch.optim.AdamW(residual.parameters())
    plain = record_trace(residual, rows, optimizer=optimizer)
    undo = keep_states_on_host(optimizer)
    trace = record_trace(residual, rows, optimizer=optimizer)
    undo()
    states = 2 * sum(parameter.nbytes for parameter in residual.parameters())
    assert bytes_between_steps(plain) - bytes_between_steps(trace) == states
    torch.save(optimizer, io.BytesIO())
