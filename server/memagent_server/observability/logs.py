"""The server's log: one line an event on stderr, logfmt or JSON, with the id of the request it belongs to.

1. A line break inside a value is escaped, so nobody who may name a run can forge a line.
2. What the settings hold as secrets is replaced before a line is written, in messages, fields and tracebacks alike.
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

from memagent_server.notify.channel import mask, parts_of_address
from memagent_server.settings import Settings

FIELDS = "memagent_fields"
"""Under this name in `extra=`, a record brings its own fields: {name: value}."""
REQUEST_ID = "memagent_request_id"
"""Under this name in `flask.g`, the id of the request."""

_SHORTEST = 8
"""What is shorter is a word of a path, and hiding it would hide half of the log."""
_TALKATIVE = {"alembic": logging.WARNING, "urllib3": logging.INFO}


def configure(settings: Settings) -> None:
    """Let this process's log go to stderr as the settings want it. Only for processes that are the server's own."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(settings.log_format, secrets_of(settings)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    for name, level in _TALKATIVE.items():
        logging.getLogger(name).setLevel(max(level, root.level))
    logging.captureWarnings(True)


class LineFormatter(logging.Formatter):
    """A record as one line: `time level logger message`, the fields it brings, `request_id`, and `trace` of an exception."""

    def __init__(self, style: str, secrets: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._write, self._secrets = (_json if style == "json" else _logfmt), secrets

    def format(self, record: logging.LogRecord) -> str:
        return self._write(
            {name: self._hidden(value) for name, value in _facts(self, record).items()}
        )

    def _hidden(self, value: Any) -> Any:
        return mask(value, self._secrets) if isinstance(value, str) else value


def secrets_of(settings: Settings) -> tuple[str, ...]:
    """Everything among the settings that a log must not show: keys and tokens whole, of addresses what opens them."""
    found: set[str] = set()
    for value in settings.secrets:
        if "://" not in value:
            found.add(value)
        elif value is settings.database_url:
            found.update(part for part in parts_of_address(value)[1:] if f":{part}@" in value)
        else:
            found.update(parts_of_address(value))
    return tuple(text for text in found if len(text) >= _SHORTEST)


def _facts(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(
            timespec="milliseconds"
        )[:23]
        + "Z",
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
    }
    fields: Mapping[str, Any] = getattr(record, FIELDS, {})
    facts |= {name: value for name, value in fields.items() if value is not None}
    if has_request_context() and REQUEST_ID in g:
        facts["request_id"] = g.get(REQUEST_ID)
    if record.exc_info:
        facts["trace"] = formatter.formatException(record.exc_info)
    return facts


def _json(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, default=str)


def _logfmt(facts: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_quoted(value)}" for name, value in facts.items())


def _quoted(value: Any) -> str:
    """As it is where it is one plain word, else as a JSON string: control characters and non-ASCII are escaped there."""
    text = str(value)
    return text if re.fullmatch(r"[!#-<>-~]+", text) else json.dumps(text)
