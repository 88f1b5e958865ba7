"""Forward hooks on real modules. Numbers are those of the module's docstring."""

from __future__ import annotations

import pytest
import torch

from memagent.diagnostics.error_guard import ErrorGuard
from memagent.hooks.phase import hook_forward, input_size, tensor_shapes


@pytest.fixture
def watched():
    """Call it with a module: returns the list in which its forwards are noted."""
    removes = []

    def watch(model: torch.nn.Module) -> list:
        seen: list = []
        removes.extend(
            hook_forward(
                [model],
                ErrorGuard(raise_errors=True),
                before=lambda training, arguments, keywords: seen.append(("before", training)),
                after=lambda training: seen.append(("after", training)),
            )
        )
        return seen

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
def test_1_a_compiled_model_is_one_graph_and_every_forward_is_seen(watched, how, fullgraph):
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    model = Own()  # torch itself does not compile a Sequential in place
    if how == "model.compile()":
        model.compile(backend=counter, fullgraph=fullgraph)
    else:
        model = torch.compile(model, backend=counter, fullgraph=fullgraph)
    seen = watched(model)
    for _ in range(4):
        model(torch.ones(2, 3)).sum().backward()
    assert seen == [("before", True), ("after", True)] * 4
    assert counter.frame_count == 1


@pytest.mark.parametrize("reentrant", [False, True])
def test_2_a_forward_that_checkpointing_repeats_inside_backward_is_part_of_backward(
    watched, reentrant
):
    from torch.utils.checkpoint import checkpoint

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    seen = watched(model)
    inputs = torch.ones(2, 3, requires_grad=True)
    checkpoint(model, inputs, use_reentrant=reentrant).sum().backward()
    assert [moment for moment, _ in seen] == ["before", "after"]
    assert model[0].weight.grad is not None


def test_3_a_forward_without_gradients_is_no_training(watched):
    model = torch.nn.Linear(3, 3)
    seen = watched(model)
    with torch.no_grad():
        model(torch.ones(1, 3))
    model.eval()
    model(torch.ones(1, 3))
    model.train()
    model(torch.ones(1, 3))
    assert [training for _, training in seen] == [False] * 4 + [True] * 2


def test_the_size_of_the_inputs_is_that_of_all_tensors_one_level_deep():
    tensor = torch.ones(2, 3)
    arguments, keywords = (
        (tensor, [tensor, "text"], None, 5),
        {"mask": tensor, "more": {"a": tensor, "b": 1}},
    )
    assert input_size(arguments, keywords) == 4 * 6
    assert tensor_shapes(arguments, keywords) == (((2, 3), "float32"),) * 4
