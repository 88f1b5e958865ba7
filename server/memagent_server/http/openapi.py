"""The document /openapi.json: OpenAPI 3.1, made of the routes of an application and of what stands
beside each (`operation`).

1. A path is a rule of the application; a converter that names its options (`any`) becomes a path
   for each of them.
2. Schemas are msgspec's of the very types that bodies are decoded into and answers are checked
   against.
3. What every route may answer (401, 404, 500 ...) is derived from what the route is, and defined
   once.
"""

from __future__ import annotations

import http
import inspect
import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import msgspec
from flask import Flask
from werkzeug.routing import Rule

import memagent
from memagent.wire.codec import JSON, MSGPACK, REPLAYED_HEADER
from memagent_server.http.api_route import API, Operation, operation_of
from memagent_server.http.auth import COOKIE
from memagent_server.http.problems import PROBLEM_JSON
from memagent_server.schemas.common import Problem
from memagent_server.schemas.examples import EXAMPLES

SCHEMAS = "#/components/schemas/{name}"
_ABOUT = """What programs can ask of a memagent server; docs/http.md says the same to people.

Every error is `application/problem+json` and says what to do. Lists are paged by `cursor`; the next page stands in `next_cursor` and in
the header `Link`. Answers to GET carry an `ETag`: ask again with `If-None-Match` and get an empty 304 while nothing has changed. Bodies
may be compressed (`Content-Encoding: gzip`, `deflate` or `zstd`), up to 8 MiB as sent and 64 MiB unpacked. A header `X-Request-ID` is
kept, made where there is none, and named in problems and in the server's log."""
_TAGS = {
    "runs": "Runs and what is asked of one",
    "agents": "What agents post",
    "alerts": "Alerts, rules, and how good the warnings were",
    "notifications": "Who was told, and by which channel",
    "estimates": "Before a run begins",
    "operation": "The server itself",
}
_WORDS = {
    400: "The body is no JSON or msgpack, or its compression is broken.",
    401: "No token, or none that is valid.",
    403: "The token's scope or projects do not reach so far, or the request comes from a page of another site.",
    404: "There is no such thing, or the token does not see it.",
    406: "The header Accept rules out every form that this answers in.",
    408: "The body broke off before its end: send it again.",
    409: "It contradicts what is there.",
    413: "The body is larger than 8 MiB as sent or 64 MiB unpacked.",
    415: "A content type or encoding that is not understood.",
    422: "A field or parameter is missing, unknown, of the wrong type or out of range; `field` names it.",
    429: "Too much, or too many wrong tokens from this address: try again after `Retry-After` seconds.",
    500: "Something went wrong inside; the server's log says what, under the `request_id`.",
    501: "The server lacks an optional package that this needs; the detail names it.",
    502: "The channel did not take it.",
    503: "The database is busy or away: try again after `Retry-After` seconds.",
}
_HEADERS = {
    "ETag": "Names this answer: send it back in If-None-Match.",
    "Link": 'The next page: `<...>; rel="next"`. Not on the last one.',
    "Location": "Where the run is.",
    "Retry-After": "Seconds to wait before trying again.",
    "WWW-Authenticate": "How to show a token.",
}
_OF_PROBLEMS = {401: ("WWW-Authenticate",), 429: ("Retry-After",), 503: ("Retry-After",)}
_ASKED = {
    "If-None-Match": "The ETag of an answer that you have.",
    REPLAYED_HEADER: "`1` where the process had ended before this was sent: nobody is alerted.",
}
_PATH = {"int": {"type": "integer", "minimum": 0}, "default": {"type": "string", "minLength": 1}}
_SECURITY = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "`memagent token create` makes one.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": "What a browser gets at /login. A request that changes something must come from the server's own pages.",
    },
}


def build_document(app: Flask) -> dict[str, Any]:
    """The whole document, JSON-ready."""
    described = list(_described(app))
    schemas = _Schemas([operation for _, _, operation, _ in described])
    paths: dict[str, dict[str, Any]] = {}
    for rule, method, operation, view in described:
        for path, fixed in _paths(rule):
            described_as = _operation(rule, operation, view, schemas, fixed)
            paths.setdefault(path, {})[method.lower()] = described_as
    return {
        "openapi": "3.1.0",
        "info": {"title": "memagent", "version": memagent.__version__, "description": _ABOUT},
        "servers": [{"url": "."}],
        "tags": [{"name": name, "description": about} for name, about in _TAGS.items()],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": schemas.components,
            "responses": {str(status): _problem(status) for status in _WORDS},
            "headers": {name: _header(about) for name, about in _HEADERS.items()},
            "parameters": {
                name: {"name": name, "in": "header", **_header(about)} for name, about in _ASKED.items()
            },
            "securitySchemes": _SECURITY,
        },
    }  # fmt: skip


class _Schemas:
    """Schemas of all that the operations take and give."""

    def __init__(self, operations: list[Operation]) -> None:
        kinds = [Problem]
        for operation in operations:
            kinds += [
                kind for kind in (operation.body, *operation.gives.values()) if kind is not None
            ]
        found, self.components = msgspec.json.schema_components(kinds, ref_template=SCHEMAS)
        self._by_kind = {id(kind): schema for kind, schema in zip(kinds, found, strict=True)}

    def content(self, kind: Any, media: tuple[str, ...]) -> dict[str, Any]:
        """`content` of a body or an answer; text has no shape."""
        if kind is str:
            return {name: {"schema": {"type": "string"}} for name in media}
        schema = self._by_kind[id(kind)]
        examples = (
            {"example": {"value": EXAMPLES[kind.__name__]}} if kind.__name__ in EXAMPLES else None
        )
        return {
            name: {"schema": schema, **({"examples": examples} if examples else {})}
            for name in media
        }


def _described(app: Flask) -> Iterator[tuple[Rule, str, Operation, Callable[..., Any]]]:
    for rule in app.url_map.iter_rules():
        view = app.view_functions[rule.endpoint]
        operation = operation_of(view)
        if operation is not None:
            for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
                yield rule, method, operation, view


def _paths(rule: Rule) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Paths of a rule as OpenAPI writes them, and which options each has chosen."""
    options = [
        re.findall(r"[\w-]+", found) for found in re.findall(r"<any\(([^)]*)\):\w+>", rule.rule)
    ]
    for chosen in product(*options):
        remaining = iter(chosen)
        path = re.sub(r"<any\([^)]*\):\w+>", lambda _match, left=remaining: next(left), rule.rule)  # type: ignore[misc]
        yield re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", path), chosen


def _operation(
    rule: Rule,
    operation: Operation,
    view: Callable[..., Any],
    schemas: _Schemas,
    fixed: tuple[str, ...],
) -> dict[str, Any]:
    summary, _, about = (inspect.getdoc(view) or "").partition("\n")
    answers = {
        str(status): _answer(operation, status, kind, schemas)
        for status, kind in operation.gives.items()
    }
    if _has_tag(operation):
        answers["304"] = {"description": "Nothing has changed since.", "headers": _headers("ETag")}
    problems = {
        str(status): {"$ref": f"#/components/responses/{status}"}
        for status in _problems(rule, operation)
    }
    found: dict[str, Any] = {
        "operationId": "_".join((view.__name__, *fixed)).replace("-", "_"),
        "summary": summary.rstrip("."),
        "description": about.strip(),
        "tags": [operation.tag],
        "parameters": [
            *_path_parameters(rule),
            *_query_parameters(operation),
            *_header_parameters(operation),
        ],
        "responses": answers | problems,
        "security": [],
    }
    if operation.body is not None:
        content = schemas.content(operation.body, (JSON, MSGPACK))
        found["requestBody"] = {"required": not operation.is_body_optional, "content": content}
    if operation.required.scope is not None:
        found["security"] = [{name: [operation.required.scope]} for name in _SECURITY]
    return {name: value for name, value in found.items() if value or name == "security"}


def _answer(operation: Operation, status: int, kind: Any, schemas: _Schemas) -> dict[str, Any]:
    """One of the answers that are no errors, with its headers."""
    names = [name for name in operation.headers if name != REPLAYED_HEADER]
    names += ["ETag"] if _has_tag(operation) else []
    names += ["Link"] if _is_paged(operation) else []
    found: dict[str, Any] = {"description": _phrase(status)}
    if names:
        found["headers"] = _headers(*names)
    if kind is not None:
        found["content"] = schemas.content(kind, operation.media)
    return found


def _problems(rule: Rule, operation: Operation) -> list[int]:
    """What may go wrong with a route, by what it is."""
    found = {500, 503, *operation.problems}
    if operation.required.scope is not None:
        found |= {401, 403, 429}
    if rule.rule.startswith(API):
        found |= {406, 422}
    if rule.arguments:
        found |= {404}
    if operation.body is not None:
        found |= {400, 408, 413, 415, 422}
    return sorted(found)


def _problem(status: int) -> dict[str, Any]:
    headers = _headers(*_OF_PROBLEMS.get(status, ()))
    content = {PROBLEM_JSON: {"schema": {"$ref": SCHEMAS.format(name="Problem")}}}
    return {
        "description": _WORDS[status],
        "content": content,
        **({"headers": headers} if headers else {}),
    }


def _path_parameters(rule: Rule) -> Iterator[dict[str, Any]]:
    for converter, name in re.findall(r"<(?:(\w+):)?(\w+)>", rule.rule):
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "schema": _PATH[converter or "default"],
        }


def _query_parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    _, components = msgspec.json.schema_components([operation.query], ref_template=SCHEMAS)
    schema = components[operation.query.__name__]
    for name, of in schema["properties"].items():
        given = {key: value for key, value in of.items() if key not in ("anyOf", "default")}
        given |= next((option for option in of.get("anyOf", ()) if option != {"type": "null"}), {})
        about = given.pop("description", None)
        if of.get("default") is not None:
            given["default"] = of["default"]
        found = {
            "name": name,
            "in": "query",
            "required": name in schema["required"],
            "schema": given,
        }
        yield found | ({"description": about} if about else {}) | _joined(given)


def _joined(schema: dict[str, Any]) -> dict[str, Any]:
    """Lists are one parameter, separated by commas."""
    return {"style": "form", "explode": False} if schema.get("type") == "array" else {}


def _header_parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    names = ["If-None-Match"] if _has_tag(operation) else []
    names += [REPLAYED_HEADER] if REPLAYED_HEADER in operation.headers else []
    for name in names:
        yield {"$ref": f"#/components/parameters/{name}"}


def _has_tag(operation: Operation) -> bool:
    return (
        operation.body is None
        and operation.required.scope in ("read", None)
        and operation.media == (JSON,)
    )


def _is_paged(operation: Operation) -> bool:
    return "cursor" in operation.query.__struct_fields__


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _header(about: str) -> dict[str, Any]:
    return {"description": about, "schema": {"type": "string"}}


def _phrase(status: int) -> str:
    return http.HTTPStatus(status).phrase
