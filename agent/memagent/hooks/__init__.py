"""Hooks that decide when to read: optimizer hooks end steps, module hooks end phases, exit hooks
report how the run ended.

Hooks registered on a user's model are deep-copied and pickled with it. Those of memagent become a
hook that does nothing (`InertHook`), so that `copy.deepcopy(model)` and `torch.save(model)` neither
fail on a lock nor report steps of the copy.
"""

from __future__ import annotations

from typing import Any


class InertHook:
    """Replacement of a hook in a copy of the model."""

    def __call__(self, *_arguments: Any, **_keywords: Any) -> None:
        return None


class Hook:
    """Base of the callables that are registered on the user's objects."""

    def __deepcopy__(self, _memo: dict[int, Any]) -> InertHook:
        return InertHook()

    def __copy__(self) -> InertHook:
        return InertHook()

    def __reduce__(self) -> tuple[type[InertHook], tuple[()]]:
        return InertHook, ()
