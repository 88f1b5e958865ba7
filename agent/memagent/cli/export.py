"""Write all samples of a run as CSV, one row a sample, from the database of MEMAGENT_DATABASE_URL."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from memagent.errors import MemagentError
from memagent_server.settings import Settings
from memagent_server.store import migrate
from memagent_server.store.engine import Database
from memagent_server.store.export import csv_lines
from memagent_server.store.runs import get_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_id", metavar="RUN_ID")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write there, not to stdout")


def run(arguments: argparse.Namespace) -> int:
    database = Database(Settings.from_environ().database_url)
    try:
        migrate.upgrade(database)
        with database.read() as session:
            if get_run(session, arguments.run_id) is None:
                raise MemagentError(f"there is no run {arguments.run_id!r} in this database")
        _write(database, arguments.run_id, arguments.output)
    finally:
        database.close()
    return 0


def _write(database: Database, run_id: str, path: Path | None) -> None:
    if path is None:
        sys.stdout.writelines(csv_lines(database, run_id))
        return
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            file.writelines(csv_lines(database, run_id))
    except OSError as error:
        raise MemagentError(f"{path} cannot be written: {error.strerror}") from error
