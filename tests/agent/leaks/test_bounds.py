"""Bounds of containers. Numbers are those of the module's docstring."""

from __future__ import annotations

import functools
import logging.handlers
import queue
from collections import OrderedDict, deque

import pytest
import torch

from memagent.leaks.bounds import Bound, bound_of, bound_of_rows
from memagent.leaks.object_names import ObjectName
from memagent.leaks.referrers import HolderPath

LIMIT = 40
ROWS: list[int] = []


def keep_in_module(item):
    ROWS.append(item)
    if len(ROWS) > LIMIT - 10:
        del ROWS[0]


class Popped:
    def __init__(self, limit):
        self.limit = limit
        self.items = OrderedDict()

    def add(self, item):
        self.items[item] = item
        while len(self.items) > self.limit:
            self.items.popitem(last=False)


class Called:
    MAX_BYTES = 8 * 30

    def __init__(self):
        self.items = {}
        self.bytes = 0

    def add(self, item):
        self.items[item] = item
        self.bytes += 8
        if self.bytes > self.MAX_BYTES:
            self._shrink()

    def _shrink(self):
        self.items.pop(next(iter(self.items)))
        self.bytes -= 8


class Guarded:
    def __init__(self, limit):
        self.limit = limit
        self.items = []

    def add(self, item):
        if len(self.items) < self.limit:
            self.items.append(item)
            return None
        old, self.items[0] = self.items[0], item
        return old


class Refusing:
    def __init__(self):
        self.items = deque()

    def add(self, item):
        if len(self.items) >= 3 * 10:
            return
        self.items.append(item)


class Sliced:
    def __init__(self, limit):
        self.limit = limit
        self.items = []

    def add(self, item):
        self.items.append(item)
        self.items = self.items[-self.limit :]


class Own(OrderedDict):
    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    def add(self, item):
        self[item] = item
        if len(self) > self.limit:
            self.popitem(last=False)


class Uncounted:
    """A pool that never counts what it has."""

    def __init__(self):
        self.items = []
        self.count = 0

    def add(self, item):
        if self.count < 30:
            self.items.append(item)


class WarmUp:
    """It's used from a size on, and grows beyond."""

    def __init__(self):
        self.items = []

    def add(self, item):
        self.items.append(item)
        if len(self.items) < 30:
            return None
        return self.items[0]


class InALoop:
    def __init__(self, limit):
        self.items = []
        self.limit, self.step = limit, 0

    def add(self, item):
        for _ in range(1):
            if self.step < self.limit:
                self.items.append(item)
            self.step += 1


class Late:
    """It keeps items from a step on: the counter is no bound."""

    def __init__(self):
        self.items = []
        self.begin, self.step = 1, 0

    def add(self, item):
        for _ in range(2):
            self.step += 1
            if self.step > self.begin:
                self.items.append(item)


class Unlimited:
    def __init__(self):
        self.items = []
        self.others = []

    def add(self, item):
        self.items.append(item)
        if len(self.others) > 30:
            self.others.pop(0)


BOUNDED = [
    (1, lambda: Popped(30)),
    (1, Called),
    (2, lambda: Guarded(30)),
    (2, Refusing),
    (2, lambda: InALoop(30)),
    (3, lambda: Sliced(30)),
]
UNBOUNDED = [Uncounted, WarmUp, Late, Unlimited]


def holder_of(owner) -> HolderPath:
    name = ObjectName("x.items", (".items",), __file__, type(owner).__name__, owner=type(owner))
    return HolderPath(owner.items, 1.0, name, (), (owner,))


def filled(owner, count=20):
    for item in range(count):
        owner.add(item)
    return owner


@pytest.mark.parametrize(("number", "make"), BOUNDED)
def test_1_2_3_what_fills_up_has_a_bound_of_the_script(number, make):
    owner = filled(make())
    bound = bound_of(holder_of(owner))
    assert bound is not None and bound.limit / bound.size == 1.5 and bound.entries == 20


@pytest.mark.parametrize("make", UNBOUNDED)
def test_what_nothing_limits_has_no_bound(make):
    assert bound_of(holder_of(filled(make()))) is None


def test_what_is_missing_to_a_bound_does_not_depend_on_its_unit():
    for size, limit in ((20, 30), (20 * 8, 30 * 8)):
        bound = Bound(size, limit, entries=20)
        assert (bound.full_bytes(100.0), bound.missing_bytes(100.0)) == (3000.0, 1000.0)


def test_a_bound_that_was_passed_is_none():
    owner = filled(Popped(30))
    owner.items.update(dict.fromkeys(range(100, 120)))
    assert bound_of(holder_of(owner)) is None


def test_a_constant_of_the_module_is_a_bound():
    for item in range(20):
        keep_in_module(item)
    name = ObjectName("ROWS", ("ROWS", ".ROWS"), __file__, "<module>")
    assert bound_of(HolderPath(ROWS, 1.0, name, (), (globals(),))) == Bound(20, LIMIT - 10, 20)


def test_a_collection_of_the_script_has_a_bound_of_its_own():
    own = filled(Own(30))
    name = ObjectName("cache", ("cache",), __file__, "<module>")
    assert bound_of(HolderPath(own, 1.0, name, (), (globals(),))) == Bound(20, 30, 20)


@pytest.mark.parametrize(("limit", "found"), [(30, 30), (0, None), (10**7, 10**7)])
def test_4_a_librarys_attribute_is_a_bound(limit, found):
    bounded = queue.Queue(maxsize=limit)
    handler = logging.handlers.MemoryHandler(limit)
    for item in range(20):
        bounded.put(item)
        handler.buffer.append(item)
    for owner, items in ((bounded, bounded.queue), (handler, handler.buffer)):
        name = ObjectName("jobs", ("jobs",), __file__, "<module>")
        bound = bound_of(HolderPath(items, 1.0, name, (), (owner,)))
        assert (bound and bound.limit) == found
    handler.buffer.clear()


@pytest.mark.parametrize("limit", [30, 5000, None])
def test_4_the_size_of_a_cached_function_is_a_bound(limit):
    cached = functools.lru_cache(limit)(abs)
    for item in range(20):
        cached(item)
    name = ObjectName("cached", ("cached",), __file__, "<module>")
    bound = bound_of(HolderPath(cached, 1.0, name, (cached,), ()))
    assert (bound and bound.limit) == limit


@pytest.mark.parametrize("limit", [30, None])
def test_4_the_length_of_a_deque_is_a_bound(limit):
    name = ObjectName("recent", ("recent",), __file__, "<module>")
    bound = bound_of(HolderPath(deque(range(20), limit), 1.0, name, (), ()))
    assert (bound and bound.limit) == limit


class Negatives:
    def __init__(self, limit):
        self.limit = limit
        self.rows = torch.empty(0, 4)

    def add(self, new):
        self.rows = torch.cat([self.rows, new])[-self.limit :].clone()


@pytest.mark.parametrize(("limit", "found"), [(500, 500), (50, None)])
def test_3_rows_of_a_tensor_are_cut_off(limit, found):
    owner = Negatives(limit)
    owner.rows = torch.zeros(100, 4)
    name = ObjectName("x.rows", (".rows",), __file__, "Negatives.add", owner=Negatives)
    holder = HolderPath(vars(owner), 1.0, name, (), (owner,))
    bound = bound_of_rows(holder, owner.rows)
    assert (bound and bound.limit) == found
