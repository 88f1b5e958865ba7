"""Forward hooks on real modules. Numbers are those of the module's docstring."""

from __future__ import annotations

import pytest
import torch

from memagent.diagnostics import ErrorGuard
from memagent.hooks.phase import hook_compiled_forward, hook_forward, input_size, tensor_shapes

LISTINGS = 40


@pytest.fixture
def hooked():
    """hooked(module) returns a list of the calls around its forwards."""
    removes = []

    def watch(model: torch.nn.Module) -> list:
        calls: list = []
        removes.extend(
            hook_forward(
                [model],
                ErrorGuard(raise_errors=True),
                before=lambda training, arguments, keywords: calls.append(("before", training)),
                after=lambda training: calls.append(("after", training)),
            )
        )
        return calls

    yield watch
    for remove in removes:
        remove()


class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x).relu()


@pytest.mark.parametrize("how", ["compile(model)", "model.compile()"])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_1_a_compiled_model_is_one_graph_and_every_forward_is_reported(hooked, how, fullgraph):
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    model = Own()  # torch itself does not compile a Sequential in place
    if how == "model.compile()":
        model.compile(backend=counter, fullgraph=fullgraph)
    else:
        model = torch.compile(model, backend=counter, fullgraph=fullgraph)
    calls = hooked(model)
    for _ in range(4):
        model(torch.ones(2, 3)).sum().backward()
    assert calls == [("before", True), ("after", True)] * 4
    assert counter.frame_count == 1


@pytest.mark.parametrize("reentrant", [False, True])
def test_2_a_forward_repeated_by_checkpointing_is_part_of_backward(hooked, reentrant):
    from torch.utils.checkpoint import checkpoint

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    calls = hooked(model)
    inputs = torch.ones(2, 3, requires_grad=True)
    checkpoint(model, inputs, use_reentrant=reentrant).sum().backward()
    assert [name for name, _ in calls] == ["before", "after"]
    assert model[0].weight.grad is not None


def test_3_a_forward_without_gradients_is_not_training(hooked):
    model = torch.nn.Linear(3, 3)
    calls = hooked(model)
    with torch.no_grad():
        model(torch.ones(1, 3))
    model.eval()
    model(torch.ones(1, 3))
    model.train()
    model(torch.ones(1, 3))
    assert [training for _, training in calls] == [False] * 4 + [True] * 2


def test_the_input_size_counts_tensors_one_level_deep():
    tensor = torch.ones(2, 3)
    arguments, keywords = (
        (tensor, [tensor, "text"], None, 5),
        {"mask": tensor, "more": {"a": tensor, "b": 1}},
    )
    assert input_size(arguments, keywords) == 4 * 6
    assert tensor_shapes(arguments, keywords) == (((2, 3), "float32"),) * 4


def test_no_tuple_of_another_thread_fails(tuple_errors: list[BaseException]) -> None:
    model = torch.nn.Linear(2, 2)
    for _ in range(LISTINGS):
        hook_compiled_forward(
            [model], ErrorGuard(), before=lambda *_: None, after=lambda training: None
        )
    assert tuple_errors == []
