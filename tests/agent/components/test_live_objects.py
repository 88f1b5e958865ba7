"""Listing live objects: what is found, and that a tuple being built by another thread is spared."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest
import torch

from memagent.components.live_objects import (
    instances,
    live_tensors,
    of_types,
    read_tensors,
    referrers,
    tensors_and_lengths,
    with_ids,
    young_ids,
)

LISTINGS = 30


class Boxes(torch.Tensor):
    pass


def test_it_lists_tensors_of_derived_classes() -> None:
    plain, boxes = torch.zeros(3), torch.zeros(3).as_subclass(Boxes)
    ids = set(map(id, live_tensors()))
    assert {id(plain), id(boxes)} <= ids


def test_it_selects_by_id_and_by_type() -> None:
    class Mapping(dict[str, int]):
        pass

    item = Mapping(a=1)
    assert with_ids({id(item)}) == [item]
    assert any(found is item for found in instances(dict))


def test_it_selects_by_exact_type_without_the_class_of_a_metaclass_having_a_say() -> None:
    class Meta(type):
        def __hash__(cls) -> int:
            raise AssertionError

    class Rows(list[int], metaclass=Meta): ...

    rows, plain = Rows([1]), [[1]]
    assert [item is rows for item in of_types([Rows])] == [True]
    ids = set(map(id, of_types([list])))
    assert id(plain) in ids and id(rows) not in ids
    assert of_types([tuple]) == []


def test_a_new_object_is_young() -> None:
    gc.collect()
    new = [object()]
    assert id(new) in young_ids()


def test_no_tuple_of_another_thread_fails(tuple_errors: list[BaseException]) -> None:
    for _ in range(LISTINGS):
        live_tensors()
        young_ids()
    assert tuple_errors == []


def test_referrers_are_sorted_by_the_tuples_on_the_way() -> None:
    item = torch.zeros(1)
    holders = [item], [(item, 1)], {"key": (2, (item,))}
    before = sys.getrefcount(item)
    levels = referrers([item])
    for holder, level in zip(holders, levels, strict=True):
        assert [found for found in level if found is holder] == [holder]
    assert not any(type(found) is tuple for level in levels for found in level)
    del levels, level
    assert sys.getrefcount(item) == before


def test_a_tuple_that_is_being_built_is_spared_on_the_same_thread() -> None:
    """A hook runs within a generator that `tuple` consumes."""

    def tensors() -> Iterator[torch.Tensor]:
        items = [torch.zeros(1) for _ in range(40)]
        for item in items:
            yield item
            if item is items[20]:
                found.append(referrers(items))
                found.append([with_ids(set(map(id, gc.get_objects())))])

    found: list[list[list[object]]] = []
    assert len(tuple(tensors())) == 40


def test_the_collector_stays_as_it_was() -> None:
    referrers([torch.zeros(1)])
    assert gc.isenabled()
    gc.disable()
    try:
        live_tensors()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_class_that_has_no_hash_is_no_error() -> None:
    """A metaclass with `__eq__` and without `__hash__`."""

    class Meta(type):  # noqa: PLW1641
        def __eq__(cls, other: object) -> bool:
            return cls is other

    class Model(torch.nn.Linear, metaclass=Meta):
        pass

    model = Model(2, 2)
    assert any(found is model for found in instances(torch.nn.Module))


def test_one_pass_lists_tensors_and_the_lengths_of_containers():
    class Rows(list):
        pass

    tensor, rows, short, derived = torch.ones(2), [1, 2, 3], {"a": [1]}, Rows([1])
    tensors, reading = tensors_and_lengths([list, dict], [Rows], {id(short): 0, id(rows): 3}, 10**6)
    assert any(item() is tensor for item in tensors.references)
    lengths = dict(zip(reading.ids, reading.lengths, strict=True))
    assert (lengths[id(rows)], lengths[id(short)]) == (3, 1)
    # and what other tests keep of this length
    longer = set(map(id, reading.longer))
    assert id(short) in longer and id(rows) not in longer
    assert any(item is derived for item in reading.others) and id(derived) not in lengths


@pytest.mark.parametrize("read", [read_tensors, lambda: tensors_and_lengths([list], [])[0]])
def test_a_reading_keeps_parameters_alive_and_no_other_tensor(read):
    tensor, parameter = torch.ones(2), torch.nn.Parameter(torch.ones(2))
    reading = read()
    place = reading.ids.index(id(tensor))
    assert reading.references[place]() is tensor
    assert any(item is parameter for item in reading.derived)
    del tensor
    assert reading.references[place]() is None


def test_without_earlier_lengths_a_pass_keeps_no_container():
    _, reading = tensors_and_lengths([list], [])
    assert reading.ids and not reading.longer
