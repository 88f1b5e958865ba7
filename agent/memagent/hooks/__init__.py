"""When to read: optimizer hooks end steps, module hooks cut phases, exit hooks tell how the run ended.

Hooks registered on a user's model are deep-copied and pickled with it; ours turn into a hook that does nothing (`Inert`), so that
`copy.deepcopy(model)` and `torch.save(model)` neither fail on our locks nor report steps of the copy.
"""

from __future__ import annotations

from typing import Any


class Inert:
    """What is left of a hook in a copy of the model."""

    def __call__(self, *_arguments: Any, **_keywords: Any) -> None:
        return None


def inert() -> Inert:
    return Inert()


class Hook:
    """Base of the callables that are registered on the user's objects."""

    def __deepcopy__(self, _memo: dict[int, Any]) -> Inert:
        return Inert()

    def __copy__(self) -> Inert:
        return Inert()

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return inert, ()
