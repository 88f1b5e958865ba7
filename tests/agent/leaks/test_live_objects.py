"""Listing live objects: what is found, and that a tuple being built by another thread is spared."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from memagent.leaks.live_objects import live_tensors, select, with_subclasses, young_ids

LISTINGS = 200


class Boxes(torch.Tensor):
    pass


@pytest.fixture
def _hasty_switches() -> Iterator[None]:
    """Let threads take turns as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_it_lists_tensors_of_derived_classes() -> None:
    plain, boxes = torch.zeros(3), torch.zeros(3).as_subclass(Boxes)
    ids = set(map(id, live_tensors()))
    assert {id(plain), id(boxes)} <= ids


def test_it_selects_by_id_and_by_type() -> None:
    class Mapping(dict[str, int]):
        pass

    item = Mapping(a=1)
    assert select(id, {id(item)}) == [item]
    assert any(found is item for found in select(type, with_subclasses(dict)))


def test_a_new_object_is_young() -> None:
    gc.collect()
    new = [object()]
    assert id(new) in young_ids()


@pytest.mark.usefixtures("_hasty_switches")
def test_no_tuple_of_another_thread_fails() -> None:
    """`tuple(generator)` raises SystemError while a list of all objects refers to its result."""
    errors: list[BaseException] = []
    is_over = threading.Event()

    def build() -> None:
        while not is_over.is_set():
            try:
                tuple(number for number in range(40))
            except SystemError as error:
                errors.append(error)
                return

    thread = threading.Thread(target=build)
    thread.start()
    for _ in range(LISTINGS):
        live_tensors()
        young_ids()
    is_over.set()
    thread.join()
    assert errors == []
