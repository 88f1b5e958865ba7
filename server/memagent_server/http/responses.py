"""Answers of the API: JSON as msgspec writes it, which has no NaN. What GET gives carries a tag, so that asking again is cheap."""

from __future__ import annotations

import gzip
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec
from flask import Response, request

_PACKED_FROM_BYTES = 4096
_PACKED_LEVEL = 1
"""Two milliseconds for the longest chart, and a third of its size; higher levels cost more than they save."""


def json_answer(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer; an empty 304 where a client that asks again has it already."""
    response = Response(msgspec.json.encode(value), status, headers, mimetype="application/json")
    if request.method in ("GET", "HEAD") and status == 200:
        response.headers["Cache-Control"] = "private, no-cache"
        response.add_etag(weak=True)
        response.make_conditional(request)
    return response


def chart_answer(value: Any) -> Response:
    """What a chart is drawn from: thousands of numbers, packed for those who take gzip. No secret is in it that its length could tell."""
    response = json_answer(value)
    response.headers["Vary"] = "Accept-Encoding"
    body = response.get_data()
    if len(body) >= _PACKED_FROM_BYTES and "gzip" in request.headers.get("Accept-Encoding", ""):
        response.set_data(gzip.compress(body, _PACKED_LEVEL, mtime=0))
        response.headers["Content-Encoding"] = "gzip"
    return response


def page_answer(page: Mapping[str, Any]) -> Response:
    """One page of a list: `next_cursor` leads on, and so does a Link header."""
    headers = {}
    if page["next_cursor"] is not None:
        asked = {**request.args.to_dict(), "cursor": page["next_cursor"]}
        headers["Link"] = f'<{request.base_url}?{urlencode(asked)}>; rel="next"'
    return json_answer(page, headers=headers)


def only(row: Mapping[str, Any], fields: Collection[str] | None) -> Mapping[str, Any]:
    """Those fields of a row that were asked for, and its id; all of them where none were named."""
    return (
        row
        if fields is None
        else {name: value for name, value in row.items() if name == "id" or name in fields}
    )
