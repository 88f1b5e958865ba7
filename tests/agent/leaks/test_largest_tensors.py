"""The largest live tensors have readable names."""

from __future__ import annotations

import gc

import pytest
import torch

from memagent.leaks.largest_tensors import largest_tensors


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(32, 512)
        self.body = torch.nn.Sequential(torch.nn.LayerNorm(512), torch.nn.ReLU())
        self.fc2 = torch.nn.Linear(512, 8)

    def forward(self, x):
        return self.fc2(self.body(self.fc1(x)))


class Keeper:
    def __init__(self):
        self.history = {"val": []}


@pytest.fixture(autouse=True)
def small_world(monkeypatch):
    """Exclude objects of other tests, whose modules may still cost more time than there is."""
    monkeypatch.setattr("memagent.leaks.largest_tensors._MAX_CPU_S", 60.0)
    gc.collect()
    gc.freeze()


def named(model, **options):
    return {holder.name: holder for holder in largest_tensors([model], [], **options)}


def test_a_variable_and_an_attribute_are_named_with_the_line_that_sets_them():
    model, keeper = Net(), Keeper()
    passing = torch.ones(2**16)
    keeper.history["val"].append(torch.zeros(2**17))
    result = named(model)
    first = test_a_variable_and_an_attribute_are_named_with_the_line_that_sets_them.__code__.co_firstlineno
    assert (result["passing"].file, result["passing"].line, passing.nbytes) == (
        __file__,
        first + 2,
        2**18,
    )
    [tensor] = [holder for name, holder in result.items() if "history['val']" in name]
    assert tensor.size_bytes == 2**19


def test_a_tensor_held_by_a_graph_is_named_by_its_module():
    model = Net()
    output = model(torch.randn(1024, 32)).sum()
    names = list(named(model))
    assert (
        "output of fc1 (Linear)" in names
        and "relu after body.0 (LayerNorm)" in names
        and output.numel() == 1
    )


def fails():
    big = torch.ones(2**18)
    raise MemoryError(big.numel())


def test_a_variable_of_a_function_that_the_error_has_ended_is_named():
    with pytest.raises(MemoryError) as caught:
        fails()
    result = named(Net(), error=caught.value)
    assert (result["big"].size_bytes, result["big"].line) == (
        2**20,
        fails.__code__.co_firstlineno + 1,
    )


def test_looking_for_names_leaves_no_references_behind():
    import sys

    tensor = torch.ones(2**18)
    before = sys.getrefcount(tensor)
    assert "tensor" in named(Net())
    assert sys.getrefcount(tensor) == before
