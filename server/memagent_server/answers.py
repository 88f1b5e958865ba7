"""Answers of the API: JSON as msgspec writes it, which has no NaN."""

from __future__ import annotations

from typing import Any

import msgspec
from flask import Response


def json_answer(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, mimetype="application/json")
