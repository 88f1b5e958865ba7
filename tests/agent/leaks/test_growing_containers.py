"""The census of containers: steady growth of what stays, whatever it is."""

from __future__ import annotations

import sys
from collections import deque

import numpy as np
import pytest

from memagent.leaks.growing_containers import ContainerCensus, size_of


def growing(add, steps=20):
    census = ContainerCensus()
    census.begin(0)
    for step in range(1, steps + 1):
        add(step)
        if 2 * step == steps:
            census.middle(step)
    return census.end(steps)


@pytest.mark.parametrize(
    ("kind", "add"),
    [
        (list, lambda items, step: items.append(bytes(5_000))),
        (dict, lambda items, step: items.update({step: np.zeros(700)})),
        (deque, lambda items, step: items.append([float(step + n) for n in range(600)])),
        (set, lambda items, step: items.add(f"{step}" * 4_000)),
    ],
    ids=["list", "dict", "deque", "set"],
)
def test_it_finds_what_grows_with_its_bytes(kind, add):
    items = kind()
    found = [item for item in growing(lambda step: add(items, step)) if item.container is items]
    assert len(found) == 1 and 4_000 < found[0].bytes_per_step < 30_000
    assert found[0].items_per_step == 1


@pytest.mark.parametrize(
    "add",
    [
        lambda items, step: step <= 8 and items.append(bytes(5_000)),  # warm-up
        lambda items, step: items.append(0.5),  # numbers
        lambda items, step: (step % 7 == 1 and items.clear(), items.append(np.zeros(900))),
        lambda items, step: (items.append(bytes(5_000 + step)), items.__delitem__(slice(0, -6))),
        lambda items, step: items.__setitem__(slice(None), [step * n for n in range(900 * step)]),
    ],
    ids=["warm_up", "numbers", "cleared", "replaced", "longer_input"],
)
def test_it_leaves_out_what_does_not_grow_for_good(add):
    items = []
    assert not [item for item in growing(lambda step: add(items, step)) if item.container is items]


def test_the_size_of_an_object_includes_its_parts():
    class Row:
        def __init__(self):
            self.values = np.zeros(1_000)
            self.next = self

    view = np.zeros(2_000)[:1]
    assert 8_000 < size_of(Row()) < 9_500
    assert size_of(view) > 16_000 and size_of([view, view]) < 18_000
    assert size_of("x" * 500) == sys.getsizeof("x" * 500)
