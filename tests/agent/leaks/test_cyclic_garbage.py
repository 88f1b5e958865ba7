"""Garbage in cycles is collected before a reading: all of it only if the script makes some."""

from __future__ import annotations

import gc
import os
import weakref

import pytest

from memagent.leaks.cyclic_garbage import CyclicGarbage, make_old, resume, uncollected

STEPS = 10


class Node:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = [self]


@pytest.fixture(autouse=True)
def _no_collections():
    """Only those of the test."""
    gc.collect()
    threshold = gc.get_threshold()
    gc.set_threshold(10**9)
    yield
    gc.enable()
    gc.set_threshold(*threshold)


def is_young(node):
    return any(item is node for item in gc.get_objects(0) + gc.get_objects(1))


def old_cycle() -> weakref.ref[Node]:
    """Return a reference to a cycle that no collection of young objects finds."""
    node = Node()
    gc.collect()
    return weakref.ref(node)


def test_1_young_garbage_is_collected_and_the_rest_is_old_then():
    garbage = CyclicGarbage()
    young, kept = weakref.ref(Node()), Node()
    garbage.collect(STEPS)
    assert young() is None
    assert not is_young(kept)


@pytest.mark.parametrize("cycles", [0, 100], ids=["none", "some"])
def test_2_old_garbage_is_collected_only_if_the_script_makes_cycles(cycles):
    old, garbage = old_cycle(), CyclicGarbage()
    for _ in range(cycles):
        Node()
    garbage.collect(STEPS)
    assert (old() is None) == bool(cycles)


@pytest.mark.parametrize("steps", [1, 2])
def test_2_the_step_after_a_collection_of_all_has_none(steps):
    garbage = CyclicGarbage()
    nodes = [Node() for _ in range(100)]
    nodes.clear()
    garbage.collect(STEPS)
    node = Node()
    gc.collect(1)
    old = weakref.ref(node)
    del node
    garbage.collect(STEPS + steps)
    assert (old() is None) == (steps > 1)


@pytest.mark.parametrize("cycles", [0, 100], ids=["none", "some"])
def test_2_the_last_check_is_left_out_right_after_a_collection_of_all(cycles):
    garbage = CyclicGarbage()
    for _ in range(cycles):
        Node()
    garbage.collect(STEPS)
    before = gc.get_stats()[-1]["collections"]
    garbage.collect_old(STEPS)
    assert gc.get_stats()[-1]["collections"] - before == (0 if cycles else 1)


def test_what_the_agent_makes_itself_is_left_out():
    old, garbage = old_cycle(), CyclicGarbage()
    with garbage.own():
        for _ in range(100):
            Node()
    garbage.collect(STEPS)
    assert old() is not None


def test_old_garbage_tells_that_cycles_have_waited():
    garbage = CyclicGarbage()
    assert not garbage.collect_old(STEPS)
    nodes = [Node() for _ in range(STEPS)]
    gc.collect()
    old = [*map(weakref.ref, nodes)]
    del nodes
    assert garbage.collect_old(STEPS)
    assert all(reference() is None for reference in old)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_search_is_not_collected_in_between(is_enabled):
    (gc.enable if is_enabled else gc.disable)()
    with pytest.raises(ZeroDivisionError), uncollected():
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled() == is_enabled


def test_a_process_forked_meanwhile_collects_its_garbage():
    gc.enable()
    with uncollected():
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not gc.isenabled()


def test_the_collector_goes_on_where_the_end_of_a_search_is_interrupted():
    gc.enable()
    search = uncollected()
    search.__enter__()  # and a signal handler raises before `__exit__` has begun
    resume()
    assert gc.isenabled()


def test_a_script_that_has_disabled_the_collector_keeps_it_so():
    gc.disable()
    with uncollected():
        resume()
    resume()
    assert not gc.isenabled()


def test_3_nothing_is_collected_if_the_script_has_switched_that_off():
    gc.unfreeze()  # other tests freeze theirs
    old, garbage = old_cycle(), CyclicGarbage()
    young, kept = weakref.ref(Node()), Node()
    gc.disable()
    for _ in range(100):
        Node()
    with garbage.own():
        garbage.collect(STEPS)
    assert not garbage.collect_old(STEPS)
    assert old() is not None and young() is not None
    assert not is_young(kept) and not gc.get_freeze_count()


def test_3_a_pause_of_memagent_does_not_count_as_switched_off():
    young = weakref.ref(Node())
    with uncollected():
        make_old()
    assert young() is None
