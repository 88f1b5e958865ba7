"""Registrations: the line of the script that a module gets its parameters and buffers from."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.hooks import RemovableHandle

from memagent.leaks import find
from memagent.leaks.registrations import (
    Registrations,
    _install_hooks,
    receiver_of,
    registering_line,
)


@pytest.fixture
def registrations():
    notes = Registrations()
    notes.start()
    yield notes
    notes.stop()


def here(offset: int = 0) -> tuple[str, int]:
    return __file__, inspect.currentframe().f_back.f_lineno + offset


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)


def test_it_notes_the_line_that_calls_a_library(registrations):
    layer = nn.Linear(8, 8)
    prune.identity(layer, "weight")
    line = here(-1)
    assert registrations.lines[id(layer.weight_mask)] == line
    assert registering_line([layer.weight_mask], registrations.lines) == (line, 1.0)


def test_a_constructor_counts_as_its_caller(registrations):
    head = Head()
    assert registrations.lines[id(head.linear.weight)] == here(-1)


def test_a_gradient_counts_with_its_parameter(registrations):
    head = Head()
    line = here(-1)
    head.linear(torch.ones(8)).sum().backward()
    others = [torch.ones(8), torch.ones(8)]
    tensors = [head.linear.weight, head.linear.weight.grad, *others]
    assert registering_line(tensors, registrations.lines) == (line, 0.5)
    assert registering_line(others, registrations.lines) == (None, 0.0)


def test_it_does_not_number_the_hooks_of_the_script():
    before = RemovableHandle.next_id
    _install_hooks.__wrapped__()
    assert RemovableHandle.next_id == before


def test_nothing_is_noted_before_the_start_and_after_the_stop():
    notes = Registrations()
    Head()
    notes.start()
    notes.stop()
    Head()
    assert not notes.lines


def test_a_line_has_the_object_whose_method_it_calls(tmp_path):
    file = tmp_path / "script.py"
    file.write_text("model.base.add(\n    x,\n)\nget_model(x)\ny = 1\n")
    path = str(file)
    assert receiver_of((path, 2)) == ("model.base", "model.base.add")
    assert receiver_of((path, 4)) == ("get_model", "get_model")
    assert receiver_of((path, 5)) == ("", "")


def test_an_imported_function_changes_its_first_argument(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(
        "import torch.nn as nn\nfrom torch.nn.utils import parametrize\n"
        'parametrize.register_parametrization(net.layers, "weight", Noise())\nnn.Linear(8, 8)\n'
    )
    call = "parametrize.register_parametrization"
    assert receiver_of((str(file), 3)) == ("net.layers", call)
    assert receiver_of((str(file), 4)) == ("nn", "nn.Linear")


SCRIPT_WITH_IMPORTS = """
import torch.nn.utils.parametrize
import net
from net import model, hook
from torch.nn.utils.parametrize import register_parametrization
from . import heads
from .heads import head
model.register_forward_hook(hook)
net.model.register_forward_hook(hook)
torch.nn.utils.parametrize.register_parametrization(layer, "weight", noise)
register_parametrization(layer, "weight", noise)
heads.add(layer)
head.add(layer)
"""


def test_an_imported_instance_is_no_module(tmp_path, monkeypatch):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT_WITH_IMPORTS)
    modules = {name: ModuleType(name) for name in ("net", "pack", "pack.script", "pack.heads")}
    modules["pack.script"].__dict__.update(__file__=str(file), __package__="pack")
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    owners = [receiver_of((str(file), line))[0] for line in range(8, 14)]
    assert owners == ["model", "net.model", "layer", "layer", "layer", "head"]


def test_the_call_that_adds_adapters_is_named_with_what_it_adds_to():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=8, target_modules=["0", "1"])
    layers = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    model = peft.get_peft_model(layers, config)
    users = iter(range(100))

    def step():
        model.add_adapter(f"user{next(users)}", config)
        line.append(here(-1)[1])

    line: list[int] = []
    [suspect, *_] = find(step).suspects
    assert (suspect.file, suspect.line) == (__file__, line[0])
    assert suspect.holder == "model: modules of model.add_adapter()"
    assert suspect.confidence >= 0.5 and "delete_adapter" in suspect.fix
