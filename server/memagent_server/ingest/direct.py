"""Answer agents' plain batches without Flask, whose routing, hooks and responses take as long as
storing a batch.

1. The head decides: a POST of msgpack with a stated length, without a query, to the batches of a
   run. A web process must have accepted its token before, and the token is checked again: it
   allows all projects, and its use was recorded lately.
2. The body is then read, checked and stored by the functions that the view uses.
3. Flask gets all other requests, and those that fail here: it checks them, and the view raises the
   error.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from flask import Flask

from memagent.wire.codec import JSON, MSGPACK, REPLAYED_HEADER
from memagent.wire.messages import Batch
from memagent_server.http import auth, credentials, login_throttle, request_logging
from memagent_server.http.asgi import MAX_SENT_BYTES
from memagent_server.http.context import EXTENSION, Context
from memagent_server.ingest import routes
from memagent_server.ingest.body import incomplete, read_packed
from memagent_server.observability import self_metrics

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_PATH = re.compile(r"/api/v1/runs/([A-Za-z0-9._-]+)/batches")
_ROUTE = "/api/v1/runs/<run_id>/batches"
_REPLAYED = "HTTP_" + REPLAYED_HEADER.upper().replace("-", "_")
_REQUEST_ID = "HTTP_" + request_logging.HEADER.upper().replace("-", "_")


class DirectBatches:
    """WSGI middleware around Flask. `headers` are those of every response."""

    def __init__(self, app: Flask, headers: dict[str, str]) -> None:
        self._flask: WSGIApplication = app.wsgi_app
        self._app = app
        self._context: Context = app.extensions[EXTENSION]
        self._headers = [*headers.items(), ("Content-Type", JSON)]

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        started_at = time.perf_counter()
        try:
            run_id = self._run_of(environ)
            reply = None if run_id is None else self._store(environ, run_id)
        except Exception as error:  # noqa: BLE001 - the view raises it
            environ[routes.FAILURE] = error
            reply = None
        if reply is None:
            return self._flask(environ, start_response)
        metrics: self_metrics.ServerMetrics = self._app.extensions[self_metrics.EXTENSION]
        metrics.count_request("POST", _ROUTE, 200, time.perf_counter() - started_at)
        request_id = request_logging.id_of(environ.get(_REQUEST_ID, ""))
        own = [(request_logging.HEADER, request_id), ("Content-Length", str(len(reply)))]
        start_response("200 OK", self._headers + own)
        return [reply]

    def _run_of(self, environ: WSGIEnvironment) -> str | None:
        """Return the run of a request that needs no Flask."""
        path = _PATH.fullmatch(environ["PATH_INFO"])
        if path is None or environ["REQUEST_METHOD"] != "POST" or environ["QUERY_STRING"]:
            return None
        length = environ.get("CONTENT_LENGTH", "")
        is_plain = (
            environ.get("CONTENT_TYPE") == MSGPACK
            and environ.get("HTTP_ACCEPT", JSON) in (JSON, "*/*")
            and "HTTP_TRANSFER_ENCODING" not in environ
            and length.isdecimal()
            and int(length) <= MAX_SENT_BYTES
            and not request_logging.is_every_success_logged()
        )
        return path[1] if is_plain and self._may_store(environ) else None

    def _may_store(self, environ: WSGIEnvironment) -> bool:
        scheme, _, token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        throttle: Any = self._app.extensions[login_throttle.EXTENSION]
        if scheme != "Bearer" or not throttle.was_valid_here(token):
            return False
        now = self._context.clock()
        with self._context.database.connect() as connection:
            access = credentials.check_token(connection, self._context.settings, token, now)
        return (
            access is not None
            and access.allows("ingest")
            and not access.projects
            and not auth.is_use_due(access, now)
        )

    def _store(self, environ: WSGIEnvironment, run_id: str) -> bytes:
        length = int(environ["CONTENT_LENGTH"])
        try:
            body = environ["wsgi.input"].read(length)
        except OSError as error:
            raise incomplete() from error
        if len(body) != length:
            raise incomplete()
        batch = read_packed(body, Batch, MSGPACK, environ.get("HTTP_CONTENT_ENCODING", ""))
        live = environ.get(_REPLAYED) != "1"
        return msgspec.json.encode(
            routes.receive(self._app, self._context, run_id, batch, live=live, sent_bytes=length)
        )
