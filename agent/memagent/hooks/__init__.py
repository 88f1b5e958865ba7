"""Hooks that decide when to read: optimizer hooks end steps, module hooks end phases, exit hooks
report how the run ended.

A model is saved, copied and inspected with its hooks: those of memagent are hidden (see
`hidden_hooks`). An optimizer is saved and copied without its hooks. A class of the script may do
otherwise; then they become a hook that does nothing (`InertHook`).
"""

from __future__ import annotations

from typing import Any


class InertHook:
    """Replacement of a hook in a copy of an optimizer."""

    def __call__(self, *_arguments: Any, **_keywords: Any) -> None:
        return None


class Hook:
    """Base of the callables that are registered on optimizers."""

    def __deepcopy__(self, _memo: dict[int, Any]) -> InertHook:
        return InertHook()

    def __copy__(self) -> InertHook:
        return InertHook()

    def __reduce__(self) -> tuple[type[InertHook], tuple[()]]:
        return InertHook, ()
