"""JSON responses of the API.

Those to GET carry an ETag, which makes polling cheap. msgspec never writes NaN.
"""

from __future__ import annotations

import gzip
from collections.abc import Collection, Mapping
from typing import Any, Protocol
from urllib.parse import urlencode

import msgspec
from flask import Response, request
from msgspec.structs import asdict

from memagent_server.schemas.base import Schema

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
    response = json_answer(value)
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
