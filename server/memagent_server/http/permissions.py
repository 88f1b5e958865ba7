"""What a route demands of the token that asks for it; `auth` checks it. One that says nothing is for admins once it changes anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Scope = Literal["ingest", "read", "admin"]
View = TypeVar("View", bound=Callable[..., Any])

_MARK = "memagent_permit"


@dataclass(frozen=True)
class RequiredScope:
    """`scope` None is open to everybody. `of_server` is what concerns the whole server, and no token that is limited to projects may do."""

    scope: Scope | None
    of_server: bool = False


LOOK = RequiredScope("read")
CHANGE = RequiredScope("admin", of_server=True)


def permit(scope: Scope | None, *, of_server: bool = False) -> Callable[[View], View]:
    """Marks a view with what it demands."""

    def mark(view: View) -> View:
        setattr(view, _MARK, RequiredScope(scope, of_server))
        return view

    return mark


def permit_of(view: Callable[..., Any] | None, *, changes: bool) -> RequiredScope:
    """What a view demands: what it was marked with, else to look for a request that changes nothing, else everything."""
    found: RequiredScope = getattr(view, _MARK, CHANGE if changes else LOOK)
    return found
