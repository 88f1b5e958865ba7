"""Listing live objects: what is found, and that a tuple being built by another thread is spared."""

from __future__ import annotations

import gc

import torch

from memagent.components.live_objects import instances, live_tensors, with_ids, young_ids

LISTINGS = 200


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


def test_a_new_object_is_young() -> None:
    gc.collect()
    new = [object()]
    assert id(new) in young_ids()


def test_no_tuple_of_another_thread_fails(tuple_errors: list[BaseException]) -> None:
    for _ in range(LISTINGS):
        live_tensors()
        young_ids()
    assert tuple_errors == []


def test_a_class_that_has_no_hash_is_no_error() -> None:
    """A metaclass with `__eq__` and without `__hash__`."""

    class Meta(type):  # noqa: PLW1641
        def __eq__(cls, other: object) -> bool:
            return cls is other

    class Model(torch.nn.Linear, metaclass=Meta):
        pass

    model = Model(2, 2)
    assert any(found is model for found in instances(torch.nn.Module))
