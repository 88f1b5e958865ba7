"""The context of a request: settings, database and clock. `create_app` attaches it to the app,
`current()` returns it.

For a token that is limited to projects, the database is filtered to them, so routes need no project
filter.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from flask import current_app, g

from memagent_server.settings import Settings
from memagent_server.store.engine import Database

EXTENSION = "memagent"
_LIMIT = "memagent_projects"


@dataclass(frozen=True)
class Context:
    settings: Settings
    database: Database
    clock: Callable[[], float] = time.time


def current() -> Context:
    """Return the context of this request, filtered to the projects of its token."""
    context: Context = g.get(EXTENSION) or current_app.extensions[EXTENSION]
    return context


def limit_to_projects(projects: tuple[str, ...]) -> None:
    """Filter the rest of this request to the runs of some projects."""
    context = current()
    setattr(g, EXTENSION, replace(context, database=context.database.limited_to(projects)))
    setattr(g, _LIMIT, projects)


def limit_of_projects() -> tuple[str, ...]:
    """Return the projects that this request is limited to, none for all."""
    projects: tuple[str, ...] = g.get(_LIMIT, ())
    return projects
