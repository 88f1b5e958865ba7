"""Hidden hooks: a call of the module runs them; a file, a copy or an inspection has no trace."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import re
import weakref
from pathlib import Path

import pytest
import torch

import memagent
from memagent.hooks.hidden_hooks import HookTable, hide_forward_hooks

PACKAGE = Path(memagent.__file__).parent


def net() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def saved(module: torch.nn.Module) -> bytes:
    buffer = io.BytesIO()
    torch.save(module, buffer)
    return buffer.getvalue()


@pytest.fixture
def calls():
    return []


@pytest.fixture
def hide(calls):
    def hide(module):
        return hide_forward_hooks(
            module,
            lambda _module, args, kwargs: calls.append(("before", len(args), sorted(kwargs))),
            lambda _module, _args, output: calls.append(("after", tuple(output.shape))),
        )

    return hide


def test_a_call_runs_the_hooks_with_its_arguments(hide, calls):
    module = net()
    remove = hide(module)
    module(input=torch.ones(3, 4))
    module(torch.ones(3, 4))
    remove()
    module(torch.ones(3, 4))
    after = ("after", (3, 2))
    assert calls == [("before", 0, ["input"]), after, ("before", 1, []), after]


@pytest.mark.parametrize("write", [saved, pickle.dumps], ids=["torch.save", "pickle"])
def test_a_file_has_the_same_bytes_as_without_hooks(write, hide):
    module = net()
    module.register_forward_hook(print)
    expected = write(module)
    hide(module)
    assert write(module) == expected


def test_a_run_leaves_no_trace_in_saved_files(recording):
    module = net()
    optimizer = torch.optim.AdamW(module.parameters())
    expected = saved(module)
    run = memagent.attach(module, optimizer)
    states = saved(module), saved(optimizer)
    run.finish()
    assert states[0] == expected == saved(module)
    assert not any(b"memagent" in content for content in states)
    with torch.serialization.safe_globals(
        [torch.nn.Sequential, torch.nn.Linear, torch.nn.ReLU, set]
    ):
        torch.load(io.BytesIO(states[0]), weights_only=True)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
def test_a_copied_table_is_a_plain_dict(duplicate, hide):
    module = net()
    hide(module)
    table = duplicate(module._forward_hooks)
    assert not isinstance(table, HookTable) and table == {}


def test_a_deep_copy_of_the_module_has_no_hooks(hide, calls):
    module = net()
    hide(module)
    copy.deepcopy(module)(torch.ones(1, 4))
    assert calls == []


def test_inspections_see_no_hooks(hide):
    module = net()
    hide(module)
    hooks = module._forward_pre_hooks
    assert (len(hooks), list(hooks), list(hooks.values()), list(hooks.keys())) == (0, [], [], [])
    assert hooks == {} and repr(hooks) == repr(net()._forward_pre_hooks)


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_a_traced_graph_is_the_same(hide, calls):
    module, inputs = net(), torch.ones(3, 4)

    def traced_graph():
        graph = str(torch.jit.trace(module, inputs, check_trace=False).graph)
        return re.sub(r"___torch_mangle_\d+\.", "", graph)

    expected = traced_graph()
    hide(module)
    assert traced_graph() == expected and calls == []


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_a_hooked_module_can_be_scripted_and_exported(hide, calls):
    module = net()
    hide(module)
    inputs = torch.ones(3, 4)
    expected = module(inputs)
    del calls[:]
    assert torch.equal(torch.jit.script(module)(inputs), expected)
    exported = torch.export.export(module, (inputs,))
    assert torch.equal(exported.module()(inputs), expected)
    assert str(PACKAGE) not in str(exported) and "memagent." not in str(exported)


def test_an_encoder_keeps_its_fast_path(hide):
    """nn.TransformerEncoder leaves it if a submodule has hooks, and then computes otherwise."""
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 1).eval()
    inputs = torch.randn(2, 3, 8)
    with torch.no_grad():
        expected = encoder(inputs)
        hide(encoder.layers[0])
        assert torch.equal(encoder(inputs), expected)


def test_a_hook_may_remove_those_that_follow_in_the_same_call(hide):
    """As the end of a run does in a hook of the script: torch has listed them before."""
    model, removes = torch.nn.Linear(2, 2), []
    seen = []
    model.register_forward_pre_hook(lambda *_: [remove() for remove in removes] and None)

    def before(module, arguments, keywords=None):
        seen.append(keywords)

    removes += [hide_forward_hooks(model, before), hide_forward_hooks(model, before)]
    model(torch.ones(1, 2))
    model(torch.ones(1, 2))
    assert seen == [None, None]


def test_the_end_of_a_run_in_a_hook_of_the_script_harms_no_forward():
    model = torch.nn.Linear(8, 8)
    runs = []
    model.register_forward_pre_hook(lambda *_: runs[0].finish())
    runs.append(memagent.attach(model, torch.optim.SGD(model.parameters()), predict=False))
    assert model(torch.ones(1, 8)).shape == (1, 8)
    assert runs[0].status == "completed"


def test_handles_of_the_script_stay_valid(hide, calls):
    module = net()
    earlier = module.register_forward_hook(lambda *_: calls.append("earlier"))
    remove = hide(module)
    later = module.register_forward_pre_hook(lambda *_: calls.append("later"), prepend=True)
    module(torch.ones(1, 4))
    assert [call for call in calls if isinstance(call, str)] == ["later", "earlier"]
    remove()
    del calls[:]
    earlier.remove()
    later.remove()
    module(torch.ones(1, 4))
    assert calls == []


def test_the_dict_is_back_after_the_last_hook(hide):
    module = net()
    hooks = module._forward_hooks
    first, second = hide(module), hide(module)
    first()
    assert isinstance(module._forward_hooks, HookTable)
    second()
    assert module._forward_hooks is hooks


def test_a_hooked_module_is_not_kept_alive(hide):
    module = net()
    remove = hide(module)
    reference = weakref.ref(module)
    del module
    gc.collect()
    assert reference() is None
    remove()
