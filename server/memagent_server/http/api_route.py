"""What a route takes and gives, said beside it. `openapi` makes the reference for programs of it, `auth` asks it who may, and it keeps
the manners that all routes of the API share: a parameter that nobody reads and an answer that nobody can read are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from flask import Flask, current_app, request

from memagent.wire.codec import JSON
from memagent_server.http.permissions import RequiredScope, Scope, permit
from memagent_server.http.problems import Problem
from memagent_server.schemas.queries import Query

View = TypeVar("View", bound=Callable[..., Any])

API = "/api/"
_MARK = "memagent_operation"
_ANYTHING = "*/*"


@dataclass(frozen=True)
class Operation:
    """`gives` is {status: shape, or None for no body}; `media` are the types of the answer; `body` is what it takes.

    `query` has its parameters, and `problems` the errors that are its own. What every route may answer, `openapi` adds.
    """

    tag: str
    permit: RequiredScope
    gives: Mapping[int, Any]
    query: type[Query] = Query
    body: Any = None
    is_body_optional: bool = False
    media: tuple[str, ...] = (JSON,)
    headers: tuple[str, ...] = ()
    problems: tuple[int, ...] = ()


def operation(
    tag: str,
    scope: Scope | None,
    gives: Any,
    *,
    of_server: bool = False,
    query: type[Query] = Query,
    body: Any = None,
    is_body_optional: bool = False,
    media: tuple[str, ...] = (JSON,),
    headers: tuple[str, ...] = (),
    problems: tuple[int, ...] = (),
) -> Callable[[View], View]:
    """Describes a view: see `Operation`. The docstring of the view is its summary and description. `gives` alone is for status 200."""
    answers = gives if isinstance(gives, dict) else {200: gives}
    found = Operation(
        tag,
        RequiredScope(scope, of_server),
        answers,
        query,
        body,
        is_body_optional,
        media,
        headers=headers,
        problems=problems,
    )

    def mark(view: View) -> View:
        setattr(view, _MARK, found)
        return permit(scope, of_server=of_server)(view)

    return mark


def operation_of(view: Callable[..., Any] | None) -> Operation | None:
    """What a view was described with, None for pages."""
    found: Operation | None = getattr(view, _MARK, None)
    return found


def install(app: Flask) -> None:
    """Refuse what no route of the API would understand. To be installed after `auth`: strangers are told nothing."""
    app.before_request(check_request)


def check_request() -> None:
    """Raises Problem 406 or 422."""
    view = current_app.view_functions.get(request.endpoint or "")
    found = operation_of(view)
    if found is None or not request.path.startswith(API):
        return
    if request.query_string:
        _check_parameters(found.query.__struct_encode_fields__)
    accept = request.environ.get("HTTP_ACCEPT", _ANYTHING)
    if accept != _ANYTHING and not any(request.accept_mimetypes[kind] > 0 for kind in found.media):
        raise Problem(
            406,
            f"this answers with {' or '.join(found.media)}: name it in the header Accept, or leave that out",
        )


def _check_parameters(known: tuple[str, ...]) -> None:
    for name in request.args:
        if name not in known:
            raise Problem(422, f"{name!r} is no parameter of this; {_listed(known)}", field=name)


def _listed(known: tuple[str, ...]) -> str:
    return f"there are {', '.join(known)}" if known else "it has none"
