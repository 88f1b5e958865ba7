"""What every request needs, hung on the Flask app by `create_app` and fetched with `current()`.

A token that is limited to projects gets a database that shows it no others, so that no route need think of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from flask import current_app, g

from memagent_server.settings import Settings
from memagent_server.store.engine import Database

EXTENSION = "memagent"


@dataclass(frozen=True)
class Context:
    settings: Settings
    database: Database
    clock: Callable[[], float] = time.time


def current() -> Context:
    """The context of the app that serves this request, as far as the request's token sees it."""
    context: Context = g.get(EXTENSION) or current_app.extensions[EXTENSION]
    return context


def limit_to(projects: tuple[str, ...]) -> None:
    """From now on this request sees the runs of these projects only."""
    context = current()
    setattr(g, EXTENSION, replace(context, database=context.database.limited_to(projects)))
