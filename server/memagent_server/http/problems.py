"""Responses of the API: JSON, or a problem (`application/problem+json`, RFC 9457).

Browsers get an HTML page for a problem. An internal error is logged with its traceback; the
response only says that it happened. JSON responses to GET carry an ETag, which makes polling cheap.
msgspec never writes NaN.
"""

from __future__ import annotations

import gzip
import http
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol
from urllib.parse import urlencode

import msgspec
from flask import Flask, Response, current_app, request
from msgspec.structs import asdict
from werkzeug.exceptions import HTTPException

from memagent.errors import FilterError, WireError
from memagent_server.http.context import limit_of_projects
from memagent_server.http.request_logging import request_id
from memagent_server.schemas.base import Schema
from memagent_server.store.errors import (
    SOON_S,
    BusyError,
    ConflictError,
    DataError,
    DBAPIError,
    PoolTimeoutError,
    UnknownRunError,
    problem_of,
    reason_of,
)

ERROR_PAGE = "memagent_error_page"
"""The key in `app.extensions` of a function (status, title, detail) -> HTML page, which the pages
register.
"""

PROBLEM_JSON = "application/problem+json"
_PROGRAM_PATHS = ("/api/", "/metrics", "/healthz", "/readyz")
_log = logging.getLogger(__name__)


class Problem(Exception):  # noqa: N818 - RFC 9457 calls it that
    """An error response.

    `detail` says what is wrong and what to do; `field` names the field at fault.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.field = field
        self.headers = dict(headers or {})


def install(app: Flask) -> None:
    """Register the error handlers."""
    app.before_request(_refuse_nul)
    app.register_error_handler(Problem, respond)
    app.register_error_handler(WireError, _wire_error)
    app.register_error_handler(
        FilterError,
        lambda error: respond(Problem(422, str(error), field=str(error).partition(":")[0])),
    )
    app.register_error_handler(UnknownRunError, _unknown_run)
    app.register_error_handler(ConflictError, lambda error: respond(Problem(409, str(error))))
    app.register_error_handler(DBAPIError, _database_error)
    app.register_error_handler(PoolTimeoutError, _database_error)
    app.register_error_handler(BusyError, _busy)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _internal_error)


def _unknown_run(error: Exception) -> Response:
    projects = limit_of_projects()
    limit = f" This request may use runs of {', '.join(projects)} only." if projects else ""
    return respond(Problem(404, f"{error}{limit}"))


def respond(problem: Problem) -> Response:
    """Return the response to a problem, in the format that the client accepts."""
    title = _title(problem.status)
    render: Callable[[int, str, str], str] | None = current_app.extensions.get(ERROR_PAGE)
    if render is not None and _wants_html():
        return Response(
            render(problem.status, title, problem.detail),
            problem.status,
            problem.headers,
            mimetype="text/html",
        )
    body: dict[str, object] = {
        "type": "about:blank",
        "title": title,
        "status": problem.status,
        "detail": problem.detail,
    }
    if problem.field is not None:
        body["field"] = problem.field
    if request_id() is not None:
        body["request_id"] = request_id()
    return Response(
        msgspec.json.encode(body), problem.status, problem.headers, mimetype=PROBLEM_JSON
    )


def _refuse_nul() -> None:
    """PostgreSQL cannot store NUL in text, so no name can contain it."""
    if "\0" in request.path:
        raise Problem(404, "Names cannot contain NUL characters.")


def _wants_html() -> bool:
    if request.path.startswith(_PROGRAM_PATHS):
        return False
    return request.accept_mimetypes.best_match(["application/json", "text/html"]) == "text/html"


def _title(status: int) -> str:
    if status == 422:
        return "Unprocessable Content"
    return http.HTTPStatus(status).phrase


def _wire_error(error: WireError) -> Response:
    return respond(Problem(400 if error.field is None else 422, str(error), field=error.field))


def _http_error(error: HTTPException) -> Response:
    response = error.get_response()
    if error.code is None or error.code < 400:
        return Response(response.get_data(), response.status_code, response.headers)
    headers = {
        name: response.headers[name]
        for name in ("Allow", "Retry-After", "WWW-Authenticate")
        if name in response.headers
    }
    detail = error.description or _title(error.code)
    if error.code == 404:
        detail = f"Nothing is at {request.path}."
    elif error.code == 405:
        allowed = headers.get("Allow", "none")
        detail = f"{request.path} does not support {request.method}. Allowed: {allowed}."
    return respond(Problem(error.code, detail, headers=headers))


def _database_error(error: DBAPIError | PoolTimeoutError) -> Response:
    if isinstance(error, DataError):
        return respond(Problem(422, "A value is out of the database's range."))
    trouble = problem_of(error)
    if trouble is None:
        _log.error("the database refused %s %s", request.method, request.path, exc_info=error)
        return respond(_unavailable("The database refused the request. Try again.", SOON_S))
    _log.error(
        "%s %s: the database %s (%s)", request.method, request.path, trouble.what, reason_of(error)
    )
    return respond(
        _unavailable(f"The database {trouble.what}. Try again later.", trouble.retry_after_s)
    )


def _unavailable(detail: str, retry_after_s: int) -> Problem:
    return Problem(503, detail, headers={"Retry-After": str(retry_after_s)})


def _busy(error: BusyError) -> Response:
    return respond(_unavailable(str(error), SOON_S))


def _internal_error(error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.path, exc_info=error)
    return respond(
        Problem(500, f"Internal server error. See the server log (request id {request_id()}).")
    )


_MIN_GZIP_BYTES = 4096
_GZIP_LEVEL = 1
"""Takes 2 ms for the longest chart and leaves a third of its size; higher levels cost more than
they save.
"""


def json_answer(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON response, or an empty 304 if the client already has it."""
    response = Response(msgspec.json.encode(value), status, headers, mimetype="application/json")
    if request.method in ("GET", "HEAD") and status == 200:
        response.headers["Cache-Control"] = "private, no-cache"
        response.add_etag(weak=True)
        response.make_conditional(request)
    return response


def chart_answer(value: Any) -> Response:
    """Return the thousands of numbers of a chart, with gzip if accepted.

    They hold no secret that the length could reveal.
    """
    return compress(json_answer(value))


def compress(response: Response) -> Response:
    """Compress a response's body with gzip if that is accepted and worth it."""
    response.headers["Vary"] = "Accept-Encoding"
    body = response.get_data()
    if len(body) >= _MIN_GZIP_BYTES and "gzip" in request.headers.get("Accept-Encoding", ""):
        response.set_data(gzip.compress(body, _GZIP_LEVEL, mtime=0))
        response.headers["Content-Encoding"] = "gzip"
    return response


class Page(Protocol):
    """A schema with rows and the next page's cursor."""

    @property
    def next_cursor(self) -> str | None: ...


def page_answer(page: Page, fields: Collection[str] | None = None) -> Response:
    """Return one page of a list, its rows cut to `fields`.

    The Link header, like `next_cursor`, leads to the next page.
    """
    headers = {}
    if page.next_cursor is not None:
        params = {**request.args.to_dict(), "cursor": page.next_cursor}
        headers["Link"] = f'<{request.base_url}?{urlencode(params)}>; rel="next"'
    body: Any = page
    if fields is not None:
        body = {
            name: [only(row, fields) for row in value] if isinstance(value, list) else value
            for name, value in asdict(body).items()
        }
    return json_answer(body, headers=headers)


def only(row: Schema, fields: Collection[str] | None) -> Schema | dict[str, Any]:
    """Return the requested fields of a row and its id; all fields if None were requested."""
    if fields is None:
        return row
    return {name: value for name, value in asdict(row).items() if name == "id" or name in fields}
