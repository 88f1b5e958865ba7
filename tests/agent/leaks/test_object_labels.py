"""Attributes by which objects of one class refer to each other in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from memagent.leaks.object_labels import link_of


class Span:
    def __init__(self, parent: Any) -> None:
        self.parent = parent
        self.children: list[Any] = []


class Slotted:
    __slots__ = ("before",)

    def __init__(self, before: Any) -> None:
        self.before = before


def by_namespace(links: int) -> list[Any]:
    path: list[Any] = [Span(None)]
    for _ in range(links):
        outer = Span(path[-1])
        path += outer.__dict__, outer
    return path


def by_slot(links: int) -> list[Any]:
    path: list[Any] = [[1.5], Slotted(None)]
    for _ in range(links):
        path.append(Slotted(path[-1]))
    return path


def by_list(links: int) -> list[Any]:
    path: list[Any] = [Span(None)]
    for _ in range(links):
        outer = Span(None)
        outer.children.append(path[-1])
        path += outer.children, outer.__dict__, outer
    return path


@pytest.mark.parametrize(
    ("make", "links", "expected"),
    [
        (by_namespace, 3, "parent"),
        (by_namespace, 2, None),
        (by_slot, 3, "before"),
        (by_list, 5, None),
    ],
)
def test_a_chain_is_named_by_the_attribute_that_links_it(
    make: Callable[[int], list[Any]], links: int, expected: str | None
) -> None:
    assert link_of(make(links)) == expected
