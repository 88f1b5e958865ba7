"""Upgrade the database's schema, show its version, or distribute its tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from memagent_server.settings import Settings
from memagent_server.store import migrate
from memagent_server.store.engine import Database

_ACTIONS: dict[str, Callable[[Database], str | None]] = {
    "upgrade": migrate.upgrade,
    "current": migrate.current,
    "distribute": migrate.distribute,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=tuple(_ACTIONS),
        help="upgrade: to this program's version; current: show the version; "
        "distribute: upgrade, and lay the tables out over the nodes of Citus",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    database = Database(Settings.from_environ().database_url)
    try:
        version = _ACTIONS[arguments.action](database)
    finally:
        database.close()
    is_current = version == migrate.head()
    if arguments.json:
        print(json.dumps({"version": version, "head": migrate.head(), "is_current": is_current}))
    elif is_current:
        print(f"the database has schema {version}, which is current")
    else:
        schema = f"schema {version}" if version else "no schema"
        print(
            f"the database has {schema}, but memagent needs {migrate.head()}: "
            "run `memagent db upgrade`"
        )
    return 0
