"""Which kind of suspect a place is, by what lies on the way to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, TracebackType
from typing import Any

from memagent.leaks.census import Growth
from memagent.leaks.referrers import Place
from memagent.leaks.suspect import Kind


def kind_of(place: Place, growth: Growth) -> Kind:
    """The first test that something on the way passes, else the container's type."""
    passed = place.passed
    for test, kind in _TESTS:
        if any(map(test, passed)):
            return kind
    if place.name is not None and any("_hooks" in name for name in place.name.identifiers):
        return "hook"
    if any(isinstance(item, FunctionType) for item in place.below):
        return "closure"
    if growth.keeps_more:
        return "view"
    return next((name for kind, name in _CONTAINERS if isinstance(place.container, kind)), "object")


def _is_cache(item: Any) -> bool:
    return type(item).__name__ == "_lru_cache_wrapper"


def is_module(item: Any) -> bool:
    return is_module_class(type(item))


def is_module_class(kind: type) -> bool:
    return any(
        base.__name__ == "Module" and base.__module__.startswith("torch.nn")
        for base in kind.__mro__
    )


def _is_optimizer(item: Any) -> bool:
    return any(
        kind.__name__ == "Optimizer" and kind.__module__.startswith("torch.optim")
        for kind in type(item).__mro__
    )


def _is_loader(item: Any) -> bool:
    return any(
        "DataLoader" in kind.__name__ and kind.__module__.startswith("torch.utils.data")
        for kind in type(item).__mro__
    )


_TESTS: tuple[tuple[Callable[[Any], bool], Kind], ...] = (
    (_is_cache, "cache"),
    (lambda item: isinstance(item, TracebackType | BaseException), "exception"),
    (_is_optimizer, "optimizer"),
    (_is_loader, "dataloader"),
)
_CONTAINERS: tuple[tuple[type, Kind], ...] = (
    (list, "list"), (deque, "deque"), (dict, "dict"), (set, "set"),
)  # fmt: skip


def can_grow(place: Place) -> bool:
    """A deque or cache of fixed size comes to an end."""
    container = place.container
    if isinstance(container, deque) and container.maxlen is not None:
        return False
    for item in place.passed:
        parameters = getattr(item, "cache_parameters", None) if _is_cache(item) else None
        if (
            isinstance(parameters, BuiltinFunctionType | FunctionType)
            and parameters()["maxsize"] is not None
        ):
            return bool(parameters()["maxsize"] > 1024)
    return True


def what_is(container: Any, kind: Kind) -> str:
    """ "list of 412"."""
    if kind == "cache":
        return "lru_cache"
    name = type(container).__name__
    try:
        return f"{name} of {len(container)}"
    except TypeError:
        return name
