"""Discovery of models and optimizers by `memagent run`, in this process without the command."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch

import memagent
from memagent.integrations.autoattach import AutoAttach, find_models
from memagent.settings import Settings


@pytest.fixture
def auto():
    result = AutoAttach(Settings.from_environ())
    result.install()
    yield result
    result.remove()
    if result.run is not None:
        result.run.finish()


def net(size=8):
    return torch.nn.Sequential(
        torch.nn.Linear(size, size), torch.nn.ReLU(), torch.nn.Linear(size, 1)
    )


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()

    def forward(self, x):
        return self.layers(x)


def train(model, optimizer, steps=1):
    for _ in range(steps):
        model(torch.randn(4, 8)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_nothing_is_attached_before_the_model_is_used(auto):
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    assert auto.run is None
    train(model, optimizer)
    assert auto.run.step == 1


def test_the_first_forward_counts_as_the_first_steps(auto, recording):
    model = net()
    train(model, torch.optim.Adam(model.parameters()), 3)
    auto.run.finish()
    columns = recording().columns()
    assert columns["input_size"] == [None] + [4 * 8] * 3
    assert all(columns["phase_forward_peak_bytes"][1:])


def test_the_first_optimizer_of_a_gan_counts_steps_and_both_models_are_measured(auto, recording):
    critic, generator = net(), net()
    steps = [torch.optim.Adam(model.parameters()) for model in (critic, generator)]
    for _ in range(5):
        train(critic, steps[0])
        train(generator, steps[1])
    assert auto.run.step == 5
    auto.run.finish()
    parameters = 4 * 2 * (8 * 8 + 8 + 8 + 1)
    assert recording().columns()["parameters_bytes"][-1] == parameters
    assert recording().columns()["optimizer_state_bytes"][-1] >= 2 * parameters


def test_two_optimizers_that_find_the_same_model_start_one_run(auto):
    """The first forward calls the hook of each, and the first of these removes both."""
    model = torch.nn.ModuleDict({"body": net()})
    model.forward = lambda x: model["body"](x)
    first = torch.optim.SGD(model["body"].parameters(), lr=0.1)
    model["head"] = torch.nn.Linear(8, 2)
    second = torch.optim.SGD(model["head"].parameters(), lr=0.1)
    train(model, first, 2)
    second.step()
    assert auto.run.step >= 2


def test_a_critic_that_steps_five_times_as_often_does_not_take_over(auto):
    generator, critic = net(), net()
    generate, criticise = (
        torch.optim.SGD(model.parameters(), lr=0.01) for model in (generator, critic)
    )
    train(generator, generate)
    for _ in range(10):
        train(critic, criticise, 5)
        train(generator, generate)
    assert auto.run.step == 11


def test_a_replaced_optimizer_continues_the_count(auto):
    model = net()
    for _ in range(3):
        optimizer = torch.optim.Adam(model.parameters())
        train(model, optimizer, 4)
    assert auto.run.step == 12


def test_an_optimizer_that_is_never_used_does_not_hold_the_count(auto):
    unused, model = net(), net()
    never = torch.optim.SGD(unused.parameters(), lr=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, 6)
    assert auto.run.step == 6


def test_a_second_model_trained_after_the_first_is_counted_too(auto, recording):
    first = net()
    one = torch.optim.SGD(first.parameters(), lr=0.1)
    train(first, one, 10)
    second = net()
    two = torch.optim.SGD(second.parameters(), lr=0.1)
    train(second, two, 20)
    assert auto.run.step == 30
    auto.run.finish()
    sampled = len(recording().columns()["step"]) - 1  # without step 0
    assert sampled + auto.run.drops["counted_late"] == 30 and sampled > 20


def test_objects_that_the_script_releases_are_freed(auto):
    def stage():
        model = net()
        optimizer = torch.optim.Adam(model.parameters())
        train(model, optimizer, 3)
        return weakref.ref(model), weakref.ref(optimizer)

    references = stage()
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    stage()
    assert auto.run.step == 6


@pytest.mark.parametrize("search_s", [1.0, 0.0])
def test_the_trials_of_a_study_are_counted_without_end(auto, recording, monkeypatch, search_s):
    """Also if there is no more time to search for their models."""
    monkeypatch.setattr("memagent.integrations.autoattach._SEARCH_ADVANCE_S", search_s)
    monkeypatch.setattr("memagent.integrations.autoattach._SEARCH_SHARE", 0.0)
    trials = []
    for _ in range(40):
        model = net()
        trials.append((model, torch.optim.Adam(model.parameters())))
        train(*trials[-1], 3)
    assert auto.run.step == 120
    auto.run.finish()
    assert recording().columns()["step"][-1] == 120


def test_the_search_for_models_of_discarded_copies_ends(auto, monkeypatch):
    from memagent.integrations import autoattach

    looks = []
    find = autoattach.find_models
    monkeypatch.setattr(autoattach, "_SEARCH_ADVANCE_S", 0.0)
    monkeypatch.setattr(autoattach, "_SEARCH_SHARE", 0.0)
    monkeypatch.setattr(
        autoattach, "find_models", lambda optimizers: looks.append(1) or find(optimizers)
    )
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    copies = []
    for _ in range(40):
        copied = copy.deepcopy(model)
        inner = torch.optim.SGD(copied.parameters(), lr=0.1)
        copies.append((copied, inner))
        train(copied, inner)
        train(model, optimizer)
    assert auto.run.step == 40 and len(looks) == 2  # of the run's start, and one more


def test_a_model_built_after_its_optimizer_is_attached(auto, recording):
    weight = torch.nn.Parameter(torch.ones(8, 8))
    optimizer = torch.optim.Adam([weight])
    model = torch.nn.Linear(8, 8, bias=False)
    model.weight = weight
    train(model, optimizer, 3)
    assert auto.run.step == 3
    train(model, optimizer, 1)
    auto.run.finish()
    assert recording().columns()["input_size"][-1] == 4 * 8


def test_parameters_without_a_module_are_counted(auto):
    weight = torch.nn.Parameter(torch.ones(8))
    optimizer = torch.optim.LBFGS([weight], max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = (weight**2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.step(closure)
    assert auto.run.step == 2


def test_an_optimizer_for_each_parameter_is_one_step_an_iteration(auto):
    model = net()
    optimizers = {weight: torch.optim.SGD([weight], lr=0.1) for weight in model.parameters()}

    def step(weight):
        optimizers[weight].step()
        optimizers[weight].zero_grad()

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(step)
    for _ in range(5):
        model(torch.randn(4, 8)).sum().backward()
    assert auto.run.step == 5


@pytest.mark.filterwarnings("default")  # of torch.compile, on optimizers
@pytest.mark.parametrize("compiles_the_step", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_script_is_counted_in_whole_graphs(auto, in_place, compiles_the_step):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    model = Net()  # torch itself doesn't compile a Sequential in place
    if in_place:
        model.compile(backend="eager", fullgraph=True)
        call = model
    else:
        call = torch.compile(model, backend="eager", fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    step = torch.compile(optimizer.step, backend="eager") if compiles_the_step else optimizer.step
    for _ in range(5):
        call(torch.randn(4, 8)).pow(2).mean().backward()
        step()
        optimizer.zero_grad()
    assert auto.run.step == 5 and counters["stats"]["unique_graphs"] == 1 + compiles_the_step
    torch._dynamo.reset()


def test_the_scripts_own_attach_takes_over(auto):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, 2)
    with memagent.attach(model, optimizer) as own:
        train(model, optimizer, 2)
        assert (own.step, own.id, auto.run.status) == (2, auto.run.id, "retired")


def test_the_scripts_own_attach_before_training_is_the_only_one(auto):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with memagent.attach(model, optimizer) as own:
        train(model, optimizer, 2)
        assert auto.run is None and own.step == 2


def test_begin_starts_the_run_before_the_first_step(auto):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    auto.begin()
    assert auto.run.step == 0 and auto.run.status == "running"


def test_only_the_outermost_module_of_the_optimizer_is_attached():
    inner, stranger = net(), net()
    outer = torch.nn.Sequential(inner, torch.nn.Linear(1, 1))
    wrapper = torch.nn.Sequential(outer)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    assert find_models([optimizer]) == [wrapper]


def test_no_tuple_of_another_thread_fails(auto, tuple_errors):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(40):
        auto.adopt_living()
        find_models([optimizer])
    assert tuple_errors == []
