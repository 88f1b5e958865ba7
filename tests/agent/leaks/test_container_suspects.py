"""Names of growing containers: by one walk, in slices, and from owners that no variable leads to."""

from __future__ import annotations

import functools
import gc
import logging
import math
import sys
import threading
import weakref

import pytest
import torch

from memagent.components import live_objects
from memagent.leaks import background_pass, container_suspects
from memagent.leaks.container_suspects import suspects_of_containers
from memagent.leaks.detectors.base import finish
from memagent.leaks.free_memory import BoundCheck
from memagent.leaks.growing_containers import GrowingContainer
from memagent.leaks.script_owners import ScriptOwners
from memagent.leaks.time_budgets import TimeBudget

REGISTRY = type(sys)("registry")
"""Holds what a library would: its namespace is no script's."""
REGISTRY.kept = []


@pytest.fixture(autouse=True)
def registry():
    yield
    REGISTRY.kept.clear()


class Buckets:
    def __init__(self):
        self.waiting = {}

    def add(self, key):
        self.waiting.setdefault(key, []).append([key])
        return self.waiting[key]


class Slotted:
    __slots__ = ("rows",)

    def __init__(self):
        self.rows = []

    def add(self, row):
        self.rows.append(row)
        return self.rows


def batches():
    buckets = Buckets()
    while True:
        yield buckets.add(7)


def closure():
    rows = []

    def add(row):
        rows.append(row)
        return rows

    return add


def kept_by_a_generator():
    generator = batches()
    rows = next(generator)
    REGISTRY.kept.append(generator)
    return rows


def kept_by_an_object():
    buckets = Buckets()
    REGISTRY.kept.append(buckets.add)
    return buckets.add(7)


def kept_by_a_closure():
    add = closure()
    REGISTRY.kept.append(add)
    return add(7)


def kept_by_a_partial():
    rows = [1]
    REGISTRY.kept.append(functools.partial(keep, rows))
    return rows


def keep(rows, row):
    rows.append(row)


def kept_without_weak_references():
    slotted = Slotted()
    REGISTRY.kept.append(slotted)
    return slotted.add(7)


def growth(*containers):
    return [GrowingContainer(item, 1.0, 10_000) for item in containers]


def sliced_budget(seconds=0.0):
    budget = TimeBudget()
    budget.begin_slice(seconds)
    return budget


def work_on(growing, budget):
    return suspects_of_containers(growing, [None] * len(growing), (), BoundCheck(), budget)


@pytest.mark.parametrize(
    ("make", "holder"),
    [
        (kept_by_a_generator, "Buckets.waiting[7]"),
        (kept_by_an_object, "Buckets.waiting[7]"),
        (kept_by_a_closure, "rows"),
        (kept_by_a_partial, "rows"),
        (kept_without_weak_references, "Slotted.rows"),
    ],
)
@pytest.mark.parametrize("slice_s", [0.0, math.inf])
def test_it_names_what_no_variable_leads_to(make, holder, slice_s):
    suspects, _ = finish(work_on(growth(make()), sliced_budget(slice_s)))
    assert [item.holder.split(":")[0] for item in suspects] == [holder]


def add_handler(logger):
    handler = logging.NullHandler()
    logger.addHandler(handler)


def test_what_sets_the_owner_of_a_container_gives_way_to_what_adds_to_it():
    logger = logging.getLogger("memagent.test")
    add_handler(logger)
    site = __file__, add_handler.__code__.co_firstlineno + 1
    work = suspects_of_containers(
        growth(logger.handlers), [site], (), BoundCheck(), sliced_budget(math.inf)
    )
    try:
        (suspect,), _ = finish(work)
        assert (suspect.holder, suspect.line) == ("logger.handlers: list of 1", site[1] + 1)
    finally:
        logger.handlers.clear()


def test_owners_are_found_without_a_pass_over_referrers(monkeypatch):
    """A pass can't be cut: at 300,000 objects, each takes 40 ms of a step boundary."""
    monkeypatch.setattr(live_objects, "referrers", None)
    suspects, _ = finish(work_on(growth(kept_by_a_generator()), sliced_budget()))
    assert [item.holder.split(":")[0] for item in suspects] == ["Buckets.waiting[7]"]


def test_one_walk_reaches_all(monkeypatch):
    tables = [Buckets() for _ in range(6)]
    walks = []
    nearest_names = container_suspects.nearest_names

    def count(*arguments):
        walks.append(arguments)
        return nearest_names(*arguments)

    monkeypatch.setattr(container_suspects, "nearest_names", count)
    growing = growth(*(table.add(7) for table in tables))
    suspects, _ = finish(work_on(growing, sliced_budget(math.inf)))
    assert len(walks) == 1 and len(suspects) == 1  # all are of one line
    assert suspects[0].bytes_per_step == 60_000


class Metrics:
    def __init__(self):
        self.table = {}

    def add(self, names):
        for name in names:
            self.table.setdefault(name, []).append(name)
        return list(self.table.values())


class Columns:
    def __init__(self):
        self.table = {name: [] for name in "abcdefghi"}

    def add(self):
        self.table["a"].append(1)
        self.table["b"].append(2)
        self.table["c"].append(3)
        self.table["d"].append(4)
        self.table["e"].append(5)
        self.table["f"].append(6)
        self.table["g"].append(7)
        self.table["h"].append(8)
        self.table["i"].append(9)
        return list(self.table.values())


METRICS = Metrics()
COLUMNS = Columns()


def rates_by_line(growing):
    suspects, _ = finish(work_on(growing, sliced_budget(math.inf)))
    return {item.line: item.bytes_per_step for item in suspects}


def test_many_lists_of_one_table_count_together_if_one_line_fills_them():
    line = Metrics.add.__code__.co_firstlineno + 2
    rates = rates_by_line(growth(*METRICS.add(range(20))))  # `assert` would keep the lists
    assert rates == {line: 200_000}


def test_many_lists_of_one_table_that_lines_of_their_own_fill_are_named_one_by_one():
    """A suspect tells of one, not of the growth of all."""
    lines = rates_by_line(growth(*COLUMNS.add()))
    first = Columns.add.__code__.co_firstlineno + 1
    assert set(lines) <= set(range(first, first + 9)) and len(lines) > 2
    assert set(lines.values()) == {10_000}


def test_each_slice_names_one_at_least_and_keeps_nothing_for_the_next():
    tables = [Buckets() for _ in range(3)]
    references = list(map(weakref.ref, tables))
    work = work_on(growth(*(table.add(7) for table in tables)), sliced_budget())
    next(work)
    next(work)
    tables.clear()
    gc.collect()
    assert not any(reference() for reference in references)
    with pytest.raises(StopIteration):
        for _ in range(9):
            next(work)


def test_another_object_that_has_the_id_of_a_freed_one_is_not_named():
    buckets = Buckets()
    growing = growth(buckets.waiting)
    key = id(buckets.waiting)
    work = work_on(growing, sliced_budget())
    next(work)
    del buckets.waiting
    others = []
    while len(others) < 1000 and (not others or id(others[-1]) != key):
        others.append([])  # a list where a dict was
    assert finish(work) == ([], set())


def test_owners_are_read_once_the_other_thread_is_done(monkeypatch):
    may_go_on = threading.Event()
    read = live_objects.references_to_owners

    def wait(*arguments):
        assert may_go_on.wait(30)
        return read(*arguments)

    monkeypatch.setattr(live_objects, "references_to_owners", wait)
    rows = kept_by_a_generator()
    owners = ScriptOwners()
    may_go_on.set()
    assert any(item is REGISTRY.kept[0] for item in owners.living()) and rows
    owners.close()


def test_owners_are_let_go_of_when_the_script_does():
    buckets = Buckets()
    reference = weakref.ref(buckets)
    owners = ScriptOwners()
    owners._pass.wait()
    del buckets
    assert reference() is None
    owners.close()


def test_tensors_and_values_are_no_owners():
    class Weight(torch.nn.Parameter):
        pass

    weight = Weight(torch.ones(1))
    owners = ScriptOwners()
    assert all(item is not weight for item in owners.living())
    assert not weakref.getweakrefcount(weight)
    owners.close()


def test_a_search_goes_on_where_no_thread_can_begin(monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(background_pass._thread, "start_new_thread", refuse)
    suspects, _ = finish(work_on(growth(kept_by_an_object()), sliced_budget()))
    assert [item.holder.split(":")[0] for item in suspects] == ["Buckets.waiting[7]"]
