"""Bounds against free memory: what fills up in time, and what ends the run before."""

from __future__ import annotations

import functools
from collections import deque

import pytest
import torch

from memagent.leaks import Finder, find
from memagent.leaks.free_memory import BoundCheck, FreeMemory
from memagent.leaks.object_names import ObjectName
from memagent.leaks.referrers import HolderPath
from memagent.leaks.suspect import build_suspect

KIB, MIB = 2**10, 2**20
MEMORY = FreeMemory(device_bytes=64 * MIB, host_bytes=MIB)


def holder_of(container) -> HolderPath:
    name = ObjectName("recent", ("recent",), __file__, "<module>")
    return HolderPath(container, 1.0, name, (), ())


def recent(limit):
    return holder_of(deque(range(20), limit))


@pytest.mark.parametrize(
    ("limit", "entry_bytes", "device", "grows"),
    [
        (1020, KIB, "cpu", False),
        (1100, KIB, "cpu", True),
        (1100, KIB, "cuda:0", False),
        (10**9, 0.001, "cpu", False),
        (70_000, KIB, "cuda:0", True),
        (None, 1, "cpu", True),
    ],
)
def test_what_needs_more_than_is_free_can_grow(limit, entry_bytes, device, grows):
    check = BoundCheck(lambda: MEMORY)
    assert check.can_grow(recent(limit), entry_bytes, 100, device) == grows
    assert check.filling_bytes_per_step == (0 if grows else 100)
    rest = None if grows else round((limit - 20) * entry_bytes)
    on_host = device == "cpu"
    assert [check.rest_bytes(on_host=host) for host in (on_host, not on_host)] == [rest, None]


def test_a_bound_counts_if_free_memory_is_unknown():
    assert not BoundCheck().can_grow(recent(10**12), MIB)


def test_allocations_of_what_fills_up_are_no_suspects():
    check = BoundCheck(lambda: MEMORY)
    kept, made = (
        build_suspect(__file__, 1, None, "3 blocks", kind, KIB, 0.7)
        for kind in ("list", "allocation")
    )
    assert check.without_filling([kept, made]) == [kept, made]
    check.can_grow(recent(1020), KIB, KIB // 2)
    assert check.without_filling([kept, made]) == [kept]
    assert check.without_filling([kept, made, made]) == [kept, made, made]


def test_the_fix_names_the_bound():
    check, holder = BoundCheck(lambda: MEMORY), recent(5000)
    suspect = build_suspect(__file__, 1, None, "recent: deque of 20", "deque", KIB, 0.9)
    assert check.with_fix(suspect, holder) == suspect and not check.is_beyond(suspect)
    assert check.can_grow(holder, KIB)
    found = check.with_fix(suspect, holder)
    assert (
        found.fix
        == "Lower the bound of `recent`, 5,000: full, it takes 4.9 MiB, and 1.0 MiB are free."
    )
    assert check.is_beyond(found)


def test_rows_of_a_tensor_are_compared_by_their_bytes():
    owner = Bank(400)
    for _ in range(20):
        owner.step()
    name = ObjectName("x.rows", (".rows",), __file__, "Bank.step", owner=Bank)
    holder = HolderPath(owner.rows, 1.0, name, (), (vars(owner), owner))
    for free, lengthens in ((380 * KIB, False), (379 * KIB, True)):
        check = BoundCheck(lambda free=free: FreeMemory(host_bytes=free))
        assert check.can_lengthen(holder, owner.rows, KIB) == lengthens


class Bank:
    def __init__(self, limit):
        self.limit, self.rows = limit, torch.empty(0, 256)

    def step(self):
        self.rows = torch.cat([self.rows, torch.zeros(1, 256)])[-self.limit :]


class Deque:
    def __init__(self, limit):
        self.recent = deque(maxlen=limit)

    def step(self):
        self.recent.append(torch.zeros(256))


class Cached:
    def __init__(self, limit):
        self.place, self.table = 0, functools.lru_cache(limit)(table)

    def step(self):
        self.place += 1
        self.table(self.place)


def table(place):
    return torch.full((256,), float(place))


class Rows:
    def __init__(self, limit):
        self.limit, self.rows = limit, []

    def step(self):
        if len(self.rows) < self.limit:
            self.rows.append(bytes(range(256)) * 16)


def diagnosed(step, free, *, host=False):
    """Return a finder after a diagnosis with so many free bytes."""
    finder = Finder(free_memory=lambda: FreeMemory(host_bytes=free), window=12)
    finder.request(host=host, beyond_budget=True)  # a share of such short steps takes minutes
    for number in range(1, 400):
        step()
        if finder.after_step(number) is not None:
            return finder
    raise AssertionError(finder.state)


@pytest.mark.parametrize(
    ("kind", "is_host"), [(Deque, False), (Bank, False), (Cached, False), (Rows, True)]
)
def test_the_finder_names_what_memory_does_not_suffice_for(kind, is_host):
    finder = diagnosed(kind(10**8).step, 2**30, host=is_host)
    assert finder.growing == "list"
    assert ", 100,000,000: full" in finder.suspects[0].fix


def test_a_verdict_stays_until_the_next_diagnosis_is_over():
    kept = Deque(10**8)
    finder = diagnosed(kept.step, 2**30)
    finder.request(beyond_budget=True)
    kept.step()
    finder.after_step(500)
    assert finder.is_busy and finder.growing == "list"


@pytest.mark.parametrize("kind", [Deque, Bank, Cached])
def test_the_finder_tells_a_buffer_from_what_memory_suffices_for(kind):
    finder = diagnosed(kind(10**5).step, 2**30)
    assert (finder.growing, finder.suspects) == ("buffer", ())
    step = finder.diagnosis.step
    assert finder.rest_bytes(on_host=True) == pytest.approx((10**5 - step) * KIB, rel=0.1)
    assert finder.rest_bytes(on_host=False) is None


def test_find_leaves_out_what_fills_up():
    assert not find(Deque(10**5).step).suspects
