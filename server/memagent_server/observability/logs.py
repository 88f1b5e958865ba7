"""The server's log: one line per event on stderr, in logfmt or JSON, with the id of its request.

1. Line breaks inside a value are escaped, so the name of a run cannot forge a line.
2. Secrets of the settings are masked in messages, fields and tracebacks before a line is written.
3. Messages are cut: a path may have 400 kB, and escapes make it six times as long.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from flask import g, has_request_context

from memagent_server.notify.channel import mask, secret_parts
from memagent_server.settings import Settings

FIELDS = "memagent_fields"
"""The key in `extra=` of a record's own fields: {name: value}."""
REQUEST_ID = "memagent_request_id"
"""The key in `flask.g` of the request's id."""

_MIN_SECRET_LENGTH = 8
"""Shorter values are also words of paths: masking them would mask half of the log."""
MAX_MESSAGE_LENGTH = 4_000
_MIN_LEVELS = {"alembic": logging.WARNING, "urllib3": logging.INFO}


def configure(settings: Settings) -> None:
    """Configure the log of this process. Only for processes of the server itself."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(settings.log_format, secrets_of(settings)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    for name, level in _MIN_LEVELS.items():
        logging.getLogger(name).setLevel(max(level, root.level))
    logging.captureWarnings(True)


class LineFormatter(logging.Formatter):
    """Format a record as one line:

    `time level logger message`, its own fields, `request_id`, and `trace` of an exception.
    """

    def __init__(self, style: str, secrets: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._write = _json if style == "json" else _logfmt
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        fields = _record_fields(self, record)
        masked = {name: self._masked(value) for name, value in fields.items()}
        # only now: a part of a secret would not be masked
        return self._write({**masked, "message": masked["message"][:MAX_MESSAGE_LENGTH]})

    def _masked(self, value: Any) -> Any:
        return mask(value, self._secrets) if isinstance(value, str) else value


def secrets_of(settings: Settings) -> tuple[str, ...]:
    """Return what a log must not show: whole keys and tokens, and the secret parts of addresses."""
    secrets: set[str] = set()
    for value in settings.secrets:
        if "://" not in value:
            secrets.add(value)
        elif value is settings.database_url:
            secrets.update(part for part in secret_parts(value)[1:] if f":{part}@" in value)
        else:
            secrets.update(secret_parts(value))
    return tuple(text for text in secrets if len(text) >= _MIN_SECRET_LENGTH)


def _record_fields(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, Any]:
    created_at = datetime.fromtimestamp(record.created, timezone.utc)
    fields: dict[str, Any] = {
        "time": created_at.isoformat(timespec="milliseconds")[:23] + "Z",
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
    }
    own_fields: Mapping[str, Any] = getattr(record, FIELDS, {})
    fields |= {name: value for name, value in own_fields.items() if value is not None}
    if has_request_context() and REQUEST_ID in g:
        fields["request_id"] = g.get(REQUEST_ID)
    if record.exc_info:
        fields["trace"] = formatter.formatException(record.exc_info)
    return fields


def _json(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, default=str)


def _logfmt(fields: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())


def _quoted(value: Any) -> str:
    """Return a plain word unchanged, anything else as a JSON string with escapes."""
    text = str(value)
    return text if re.fullmatch(r"[!#-<>-~]+", text) else json.dumps(text)
