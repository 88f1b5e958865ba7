"""Errors as answers: `application/problem+json` (RFC 9457) for programs, a page for people in a browser.

Nothing that goes wrong inside shows a traceback outside: it is logged, and the answer says only that it happened.
"""

from __future__ import annotations

import http
import logging
from collections.abc import Callable, Mapping

import msgspec
from flask import Flask, Response, current_app, request
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from werkzeug.exceptions import HTTPException

from memagent.errors import WireError
from memagent_server.http.request_logging import request_id
from memagent_server.store.db_errors import SOON_S, reason_of, trouble_of
from memagent_server.store.errors import BusyError, ConflictError, UnknownRunError

ERROR_PAGE = "memagent_error_page"
"""Under this name in `app.extensions`, the pages hang a function (status, title, detail) -> body of an HTML page."""

PROBLEM_JSON = "application/problem+json"
_FOR_PROGRAMS = ("/api/", "/metrics", "/healthz", "/readyz")
_log = logging.getLogger(__name__)


class Problem(Exception):  # noqa: N818 - RFC 9457 calls it that
    """A request that is answered with an error. `detail` says what is wrong and what to do; `field` names what is at fault."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.field, self.headers = (
            status,
            detail,
            field,
            dict(headers or {}),
        )


def install(app: Flask) -> None:
    """Make `app` answer every error as this module says."""
    app.before_request(_refuse_nul)
    app.register_error_handler(Problem, respond)
    app.register_error_handler(WireError, _wire_error)
    app.register_error_handler(UnknownRunError, lambda error: respond(Problem(404, str(error))))
    app.register_error_handler(ConflictError, lambda error: respond(Problem(409, str(error))))
    app.register_error_handler(DBAPIError, _database_error)
    app.register_error_handler(PoolTimeoutError, _database_error)
    app.register_error_handler(BusyError, _busy)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _internal_error)


def respond(problem: Problem) -> Response:
    """The answer to a problem, in the form that the client can read."""
    title = _title(problem.status)
    render: Callable[[int, str, str], str] | None = current_app.extensions.get(ERROR_PAGE)
    if render is not None and _is_for_people():
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
    if (name := request_id()) is not None:
        body["request_id"] = name
    return Response(
        msgspec.json.encode(body), problem.status, problem.headers, mimetype=PROBLEM_JSON
    )


def _refuse_nul() -> None:
    """PostgreSQL's text holds no NUL, so nothing can be called by one."""
    if "\0" in request.path:
        raise Problem(404, "there is nothing whose name holds a NUL")


def _is_for_people() -> bool:
    if request.path.startswith(_FOR_PROGRAMS):
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
    kept = {
        name: response.headers[name]
        for name in ("Allow", "Retry-After", "WWW-Authenticate")
        if name in response.headers
    }
    detail = error.description or _title(error.code)
    if error.code == 404:
        detail = f"there is nothing at {request.path}"
    elif error.code == 405:
        detail = (
            f"{request.method} is not possible at {request.path}; {kept.get('Allow', 'nothing')} is"
        )
    return respond(Problem(error.code, detail, headers=kept))


def _database_error(error: DBAPIError | PoolTimeoutError) -> Response:
    if isinstance(error, DataError):
        return respond(Problem(422, "a value does not fit the database"))
    trouble = trouble_of(error)
    if trouble is None:
        _log.error("the database refused %s %s", request.method, request.path, exc_info=error)
        return respond(_unavailable("the database does not take this now; try again", SOON_S))
    _log.error(
        "%s %s: the database %s (%s)", request.method, request.path, trouble.what, reason_of(error)
    )
    return respond(
        _unavailable(f"the database {trouble.what}; try again later", trouble.retry_after_s)
    )


def _unavailable(detail: str, retry_after_s: int) -> Problem:
    return Problem(503, detail, headers={"Retry-After": str(retry_after_s)})


def _busy(error: BusyError) -> Response:
    return respond(_unavailable(str(error), SOON_S))


def _internal_error(error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.path, exc_info=error)
    return respond(Problem(500, "something went wrong inside the server; its log says what"))
