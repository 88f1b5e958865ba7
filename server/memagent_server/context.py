"""What every request needs, hung on the Flask app by `create_app` and fetched with `current()`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from flask import current_app

from memagent_server.settings import Settings
from memagent_server.store.engine import Database

EXTENSION = "memagent"


@dataclass(frozen=True)
class Context:
    settings: Settings
    database: Database
    clock: Callable[[], float] = time.time


def current() -> Context:
    """The context of the app that serves this request."""
    context: Context = current_app.extensions[EXTENSION]
    return context
