"""Build /openapi.json (OpenAPI 3.1) from the routes of an app and the `operation` that each
declares.

1. A path is a rule of the app; a converter that lists its options (`any`) becomes one path for
   each.
2. Schemas come from msgspec, of the same types that decode bodies and check responses.
3. Responses that every route may return (401, 404, 500 ...) are derived from the route, and defined
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
from memagent_server.http.credentials import COOKIE
from memagent_server.http.problems import PROBLEM_JSON
from memagent_server.schemas.base import JsonObject, Problem
from memagent_server.schemas.examples import EXAMPLES
from memagent_server.schemas.queries import PARTIAL

SCHEMAS = "#/components/schemas/{name}"
_DESCRIPTION = """The API of a memagent server for programs; docs/http.md describes it for people.

Every error is `application/problem+json` and says what to do. Lists are paged by `cursor`: the \
next page is named by `next_cursor` and by the header `Link`. Responses to GET carry an `ETag`: \
send it back in `If-None-Match` to get an empty 304 while nothing has changed. Bodies may be \
compressed (`Content-Encoding: gzip`, `deflate` or `zstd`), up to 8 MiB as sent and 64 MiB \
uncompressed. A header `X-Request-ID` is kept, or generated if it is missing; it appears in \
problems and in the server's log."""
_TAGS = {
    "runs": "Runs and their data",
    "agents": "What agents post",
    "alerts": "Alerts, rules, and the accuracy of warnings",
    "notifications": "Notifications and their channels",
    "estimates": "Estimates before a run starts",
    "operation": "The server itself",
}
_PROBLEMS = {
    400: "The body is not valid JSON or msgpack, or its compression is broken.",
    401: "The token is missing or invalid.",
    403: "The token does not grant access, or the request comes from a page of another site.",
    404: "Not found, or not visible to the token.",
    406: "The header Accept excludes all media types of the response.",
    408: "The body is incomplete: send it again.",
    409: "The request conflicts with the current state.",
    413: "The body is larger than 8 MiB as sent or 64 MiB uncompressed.",
    415: "Unsupported content type or encoding.",
    422: "A field or parameter is missing, unknown, mistyped or out of range: see `field`.",
    429: "Rate limit, or too many invalid tokens from this address: see `Retry-After`.",
    500: "Internal server error: see the server's log for the `request_id`.",
    501: "The server lacks an optional package: the detail names it.",
    502: "The channel refused the message.",
    503: "The database is busy or unavailable: try again after `Retry-After` seconds.",
}
_HEADERS = {
    "ETag": "Identifies this response: send it back in If-None-Match.",
    "Link": 'The next page: `<...>; rel="next"`. Missing on the last one.',
    "Location": "The address of the run.",
    "Retry-After": "Seconds to wait before trying again.",
    "WWW-Authenticate": "The authentication scheme.",
}
_PROBLEM_HEADERS = {401: ("WWW-Authenticate",), 429: ("Retry-After",), 503: ("Retry-After",)}
_REQUEST_HEADERS = {
    "If-None-Match": "The ETag of a response that the client has.",
    REPLAYED_HEADER: "`1` if the process had ended before this was sent: no alerts are raised.",
}
_PATH_SCHEMAS = {
    "int": {"type": "integer", "minimum": 0},
    "default": {"type": "string", "minLength": 1},
}
_SECURITY = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "Create one with `memagent token create`.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": "The cookie of a browser that logged in at /login. Requests that change "
        "something must come from the server's own pages.",
    },
}


def build_document(app: Flask) -> JsonObject:
    """Return the whole document, ready for JSON."""
    routes = list(_routes(app))
    schemas = _Schemas([operation for _, _, operation, _ in routes])
    paths: dict[str, JsonObject] = {}
    for rule, method, operation, view in routes:
        for path, options in _paths(rule):
            described = _operation(rule, operation, view, schemas, options)
            paths.setdefault(path, {})[method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "memagent", "version": memagent.__version__, "description": _DESCRIPTION},
        "servers": [{"url": "."}],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": schemas.components,
            "responses": {str(status): _problem(status) for status in _PROBLEMS},
            "headers": {name: _header(text) for name, text in _HEADERS.items()},
            "parameters": {
                name: {"name": name, "in": "header", **_header(text)}
                for name, text in _REQUEST_HEADERS.items()
            },
            "securitySchemes": _SECURITY,
        },
    }


class _Schemas:
    """The schemas of all request and response bodies."""

    def __init__(self, operations: list[Operation]) -> None:
        kinds: list[Any] = [Problem]
        for operation in operations:
            kinds += [
                kind for kind in (operation.body, *operation.gives.values()) if kind is not None
            ]
        schemas, self.components = msgspec.json.schema_components(kinds, ref_template=SCHEMAS)
        for kind in PARTIAL:
            if kind.__name__ in self.components:
                self.components[kind.__name__]["required"] = ["id"]
        self._by_kind = {id(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}

    def content(self, kind: Any, media: tuple[str, ...]) -> JsonObject:
        """Return the `content` of a body or response; text has no schema."""
        if kind is str:
            return {name: {"schema": {"type": "string"}} for name in media}
        content: JsonObject = {"schema": self._by_kind[id(kind)]}
        if kind.__name__ in EXAMPLES:
            content["examples"] = {"example": {"value": EXAMPLES[kind.__name__]}}
        return dict.fromkeys(media, content)


def _routes(app: Flask) -> Iterator[tuple[Rule, str, Operation, Callable[..., Any]]]:
    for rule in app.url_map.iter_rules():
        view = app.view_functions[rule.endpoint]
        operation = operation_of(view)
        if operation is not None:
            for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
                yield rule, method, operation, view


def _paths(rule: Rule) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield a rule's paths in OpenAPI's syntax, with the options of each."""
    converters = re.findall(r"<any\(([^)]*)\):\w+>", rule.rule)
    for options in product(*(re.findall(r"[\w-]+", listed) for listed in converters)):
        path = rule.rule
        for option in options:
            path = re.sub(r"<any\([^)]*\):\w+>", option, path, count=1)
        yield re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", path), options


def _operation(
    rule: Rule,
    operation: Operation,
    view: Callable[..., Any],
    schemas: _Schemas,
    options: tuple[str, ...],
) -> JsonObject:
    summary, _, description = (inspect.getdoc(view) or "").partition("\n")
    responses = {
        str(status): _response(operation, status, kind, schemas)
        for status, kind in operation.gives.items()
    }
    if _has_etag(operation):
        responses["304"] = {"description": "Nothing has changed.", "headers": _headers("ETag")}
    problems = {
        str(status): {"$ref": f"#/components/responses/{status}"}
        for status in _problems(rule, operation)
    }
    described: JsonObject = {
        "operationId": "_".join((view.__name__, *options)).replace("-", "_"),
        "summary": summary.rstrip("."),
        "description": description.strip(),
        "tags": [operation.tag],
        "parameters": [
            *_path_parameters(rule),
            *_query_parameters(operation),
            *_header_parameters(operation),
        ],
        "responses": responses | problems,
        "security": [],
    }
    if operation.body is not None:
        content = schemas.content(operation.body, (JSON, MSGPACK))
        described["requestBody"] = {"required": not operation.is_body_optional, "content": content}
    if operation.required.scope is not None:
        described["security"] = [{name: [operation.required.scope]} for name in _SECURITY]
    return {name: value for name, value in described.items() if value or name == "security"}


def _response(operation: Operation, status: int, kind: Any, schemas: _Schemas) -> JsonObject:
    """Return a success response with its headers."""
    names = [name for name in operation.headers if name != REPLAYED_HEADER]
    names += ["ETag"] if _has_etag(operation) else []
    names += ["Link"] if _is_paged(operation) else []
    response: JsonObject = {"description": http.HTTPStatus(status).phrase}
    if names:
        response["headers"] = _headers(*names)
    if kind is not None:
        response["content"] = schemas.content(kind, operation.media)
    return response


def _problems(rule: Rule, operation: Operation) -> list[int]:
    """Return the error statuses of a route."""
    statuses = {500, 503, *operation.problems}
    if operation.required.scope is not None:
        statuses |= {401, 403, 429}
    if rule.rule.startswith(API):
        statuses |= {406, 422}
    if rule.arguments:
        statuses |= {404}
    if operation.body is not None:
        statuses |= {400, 408, 413, 415, 422}
    return sorted(statuses)


def _problem(status: int) -> JsonObject:
    headers = _headers(*_PROBLEM_HEADERS.get(status, ()))
    content = {PROBLEM_JSON: {"schema": {"$ref": SCHEMAS.format(name="Problem")}}}
    return {
        "description": _PROBLEMS[status],
        "content": content,
        **({"headers": headers} if headers else {}),
    }


def _path_parameters(rule: Rule) -> Iterator[JsonObject]:
    for converter, name in re.findall(r"<(?:(\w+):)?(\w+)>", rule.rule):
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "schema": _PATH_SCHEMAS[converter or "default"],
        }


def _query_parameters(operation: Operation) -> Iterator[JsonObject]:
    _, components = msgspec.json.schema_components([operation.query], ref_template=SCHEMAS)
    schema = components[operation.query.__name__]
    for name, declared in schema["properties"].items():
        resolved = {key: declared[key] for key in declared if key not in ("anyOf", "default")}
        options = declared.get("anyOf", ())  # an optional parameter is `anyOf` its type and null
        resolved |= next((option for option in options if option != {"type": "null"}), {})
        description = resolved.pop("description", None)
        if declared.get("default") is not None:
            resolved["default"] = declared["default"]
        parameter = {
            "name": name,
            "in": "query",
            "required": name in schema["required"],
            "schema": resolved,
        }
        if description:
            parameter["description"] = description
        if resolved.get("type") == "array":  # one parameter with commas
            parameter |= {"style": "form", "explode": False}
        yield parameter


def _header_parameters(operation: Operation) -> Iterator[JsonObject]:
    names = ["If-None-Match"] if _has_etag(operation) else []
    names += [REPLAYED_HEADER] if REPLAYED_HEADER in operation.headers else []
    for name in names:
        yield {"$ref": f"#/components/parameters/{name}"}


def _has_etag(operation: Operation) -> bool:
    return (
        operation.body is None
        and operation.required.scope in ("read", None)
        and operation.media == (JSON,)
    )


def _is_paged(operation: Operation) -> bool:
    return "cursor" in operation.query.__struct_fields__


def _headers(*names: str) -> JsonObject:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _header(description: str) -> JsonObject:
    return {"description": description, "schema": {"type": "string"}}
