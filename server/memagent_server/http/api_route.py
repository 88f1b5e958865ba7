"""What a route takes, returns and requires, declared by decorators on its view.

`auth` reads the required scope, `openapi` the rest. `check_request` enforces what all routes of the
API share: it refuses unknown query parameters, and clients that accept none of the route's media
types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from flask import Flask, current_app, request

from memagent.wire.codec import JSON, prepare
from memagent_server.http.problems import Problem
from memagent_server.schemas.queries import Query

Scope = Literal["ingest", "read", "admin"]
View = TypeVar("View", bound=Callable[..., Any])

API = "/api/"
_OPERATION = "memagent_operation"
_REQUIRED_SCOPE = "memagent_required_scope"
_ANY_MEDIA_TYPE = "*/*"


@dataclass(frozen=True)
class RequiredScope:
    """What a token needs for a route. A `scope` of None means that the route is public.

    `of_server` marks what concerns the whole server; tokens that are limited to projects are
    refused there.
    """

    scope: Scope | None
    of_server: bool = False


READ = RequiredScope("read")
CHANGE = RequiredScope("admin", of_server=True)


def require_scope(scope: Scope | None, *, of_server: bool = False) -> Callable[[View], View]:
    """Declare the scope that a view requires."""

    def decorate(view: View) -> View:
        setattr(view, _REQUIRED_SCOPE, RequiredScope(scope, of_server))
        return view

    return decorate


def required_scope_of(view: Callable[..., Any] | None, *, changes: bool) -> RequiredScope:
    """Return a view's declared scope; by default READ, or CHANGE for a request that writes."""
    required: RequiredScope = getattr(view, _REQUIRED_SCOPE, CHANGE if changes else READ)
    return required


@dataclass(frozen=True)
class Operation:
    """An operation of the API.

    `gives` maps each success status to the response's type, or to None for no body. `media` lists
    the response's media types. `problems` lists error statuses that are specific to this route;
    `openapi` adds the common ones.
    """

    tag: str
    required: RequiredScope
    gives: Mapping[int, Any]
    query: type[Query] = Query
    body: Any = None
    is_body_optional: bool = False
    media: tuple[str, ...] = (JSON,)
    headers: tuple[str, ...] = ()
    problems: tuple[int, ...] = ()


def operation(
    tag: str, scope: Scope | None, gives: Any, *, of_server: bool = False, **details: Any
) -> Callable[[View], View]:
    """Describe a view: `details` are the fields of `Operation`. The view's docstring becomes its
    summary and description.

    A `gives` that is not a dict is the type of the response with status 200.
    """
    by_status = gives if isinstance(gives, dict) else {200: gives}
    described = Operation(tag, RequiredScope(scope, of_server), by_status, **details)
    if described.body is not None:
        prepare(described.body)

    def decorate(view: View) -> View:
        setattr(view, _OPERATION, described)
        return require_scope(scope, of_server=of_server)(view)

    return decorate


def operation_of(view: Callable[..., Any] | None) -> Operation | None:
    """Return the description of a view, None for pages."""
    described: Operation | None = getattr(view, _OPERATION, None)
    return described


def install(app: Flask) -> None:
    """Check every request of the API.

    Install after `auth`, so that strangers learn nothing about a route.
    """
    app.before_request(check_request)


def check_request() -> None:
    """Raise Problem 422 for an unknown query parameter, 406 if no accepted media type fits."""
    view = current_app.view_functions.get(request.endpoint or "")
    described = operation_of(view)
    if described is None or not request.path.startswith(API):
        return
    if request.query_string:
        _check_parameters(described.query.__struct_encode_fields__)
    accept = request.environ.get("HTTP_ACCEPT", _ANY_MEDIA_TYPE)
    if accept == _ANY_MEDIA_TYPE or accept in described.media:
        return
    if not any(request.accept_mimetypes[kind] > 0 for kind in described.media):
        raise Problem(
            406,
            f"This route returns {' or '.join(described.media)}: "
            "name it in the Accept header, or omit the header.",
        )


def _check_parameters(choices: tuple[str, ...]) -> None:
    for name in request.args:
        if name not in choices:
            names = f"Use: {', '.join(choices)}." if choices else "This route has none."
            raise Problem(422, f"Unknown parameter {name!r}. {names}", field=name)
