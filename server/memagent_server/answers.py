"""Answers of the API: JSON as msgspec writes it, which has no NaN. What GET gives carries a tag, so that asking again is cheap."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec
from flask import Response, request


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer; an empty 304 where a client that asks again has it already."""
    response = Response(msgspec.json.encode(value), status, headers, mimetype="application/json")
    if request.method in ("GET", "HEAD") and status == 200:
        response.headers["Cache-Control"] = "private, no-cache"
        response.add_etag(weak=True)
        response.make_conditional(request)
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
    return row if fields is None else {name: value for name, value in row.items() if name == "id" or name in fields}
