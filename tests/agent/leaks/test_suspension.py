"""Lists of live tensors that another thread begins while the script goes on."""

from __future__ import annotations

import gc
import operator
import sys
import threading

import pytest
import torch

from memagent.components import live_objects
from memagent.leaks import background_pass
from memagent.leaks.suspension import GONE, Survey, Suspension


@pytest.fixture
def survey():
    others = gc.callbacks[:]  # surveys of runs that other tests left open keep parameters, too
    gc.callbacks.clear()
    survey = Survey()
    assert survey._pass.wait()
    yield survey
    survey.close()
    gc.callbacks[:] = others


def is_listed(tensor, survey):
    return any(tensor is other for other in survey.end())


def test_a_tensor_that_becomes_old_after_the_pass_is_listed(survey):
    tensor = torch.ones(2)
    gc.collect()
    assert is_listed(tensor, survey)


def test_a_tensor_made_while_another_thread_begins_a_collection_is_listed(survey):
    """A callback of the collector runs Python code, during which the training thread goes on."""
    read_used_bytes, may_go_on = threading.Event(), threading.Event()

    def pause(phase, _info):
        if phase == "start" and threading.current_thread() is other:
            read_used_bytes.set()
            may_go_on.wait(30)

    other = threading.Thread(target=gc.collect)
    gc.callbacks.append(pause)  # after the survey's
    try:
        other.start()
        assert read_used_bytes.wait(30)
        tensor = torch.ones(2)
        may_go_on.set()
        other.join()
    finally:
        gc.callbacks.remove(pause)
    assert is_listed(tensor, survey)


def test_a_second_reading_lists_what_was_made_since_the_first(survey):
    survey.read()
    made = torch.ones(2)
    gc.collect()
    assert not survey.must_repeat and is_listed(made, survey)


def test_a_parameter_that_was_replaced_is_freed_at_the_next_reading(survey):
    replaced, kept = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    gc.collect()  # the survey notes them before they become old
    storage = torch.multiprocessing.reductions.StorageWeakRef(replaced.untyped_storage())
    del replaced
    assert not storage.expired()
    listed = survey.read()
    assert storage.expired() and any(tensor is kept for tensor in listed)


def test_a_parameter_that_only_a_graph_keeps_is_listed(survey):
    parameter = torch.nn.Parameter(torch.ones(2))
    graph = (2 * parameter).sum()
    key = id(parameter)
    gc.collect()
    del parameter
    assert key in map(id, survey.read()) and graph.requires_grad


def test_collections_of_the_youngest_objects_are_not_watched(survey):
    """A step that makes many objects has hundreds."""
    tensor = torch.ones(2)
    gc.collect(0)
    assert id(tensor) not in survey._references and is_listed(tensor, survey)


def test_a_thread_that_dies_without_memory_is_not_waited_for(monkeypatch):
    tensor = torch.ones(2)
    monkeypatch.setattr(background_pass, "_MAX_PASS_S", 0.0)
    monkeypatch.setattr(background_pass._thread, "start_new_thread", lambda *_: None)
    assert is_listed(tensor, Survey())


ZOO: list[torch.nn.Module] = []


@pytest.fixture
def zoo():
    ZOO.extend(torch.nn.Linear(2, 2) for _ in range(9))
    yield ZOO
    ZOO.clear()


def over_a_pause(items):
    """What is left of some objects after a pause in which the first model is freed."""
    suspension = Suspension()
    suspension.add(items)
    work = suspension.pause()
    next(work)
    assert not items
    del ZOO[0]
    gc.collect()
    with pytest.raises(StopIteration):
        next(work)
    return items


def test_parameters_that_variables_lead_to_are_found_without_a_pass(zoo, monkeypatch):
    """It takes 70 ms of the boundary at 300,000 objects, and a walk 3 to 25."""
    monkeypatch.setattr(live_objects, "with_ids", None)
    kept = [model.weight for model in zoo[1:]]
    assert all(map(operator.is_, over_a_pause(list(kept)), kept))


def test_parameters_that_no_variable_leads_to_are_found_by_a_pass(zoo):
    registry = type(sys)("registry")  # its namespace is no script's
    registry.kept = torch.nn.Parameter(torch.ones(1))
    key = id(registry.kept)
    found = over_a_pause([registry.kept, *(model.weight for model in zoo)])
    assert id(found[0]) == key and found[1] is GONE and GONE not in found[2:]
