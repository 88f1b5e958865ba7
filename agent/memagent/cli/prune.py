"""Delete samples of old runs, then their rollups, or whole runs.

Charts of runs without samples stay, with a lower resolution."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict

from memagent.errors import SettingError
from memagent.live.progress import Progress
from memagent.units import DAY_S, format_bytes, parse_age
from memagent_server.settings import Settings
from memagent_server.store import migrate
from memagent_server.store.engine import Database
from memagent_server.store.retention import Limits, PrunableRun, find_prunable, prune


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        help="samples of runs that ended this long ago: 12h, 30d or 8w; required with --runs "
        "(default: samples older than MEMAGENT_RETENTION_DAYS, rollups older than "
        "MEMAGENT_ROLLUP_DAYS)",
    )
    parser.add_argument("--project", help="only runs of this project")
    parser.add_argument("--runs", action="store_true", help="delete whole runs with all their data")
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be deleted, without deleting it"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    settings = Settings.from_environ()
    limits = _limits(arguments, settings, time.time())
    database = Database(settings.database_url)
    try:
        migrate.upgrade(database)
        with database.read() as session:
            items = find_prunable(session, limits, project=arguments.project, whole=arguments.runs)
        if not arguments.dry_run:
            items = _prune(database, items, limits)
    finally:
        database.close()
    _print_result(items, arguments)
    return 0


def _limits(arguments: argparse.Namespace, settings: Settings, now: float) -> Limits:
    if arguments.older_than is None:
        if arguments.runs:
            raise SettingError(
                "--runs deletes runs permanently: give an age, as in --older-than 90d."
            )
        return Limits(now - settings.retention_days * DAY_S, now - settings.rollup_days * DAY_S)
    return Limits(now - parse_age("--older-than", arguments.older_than))


def _prune(database: Database, items: list[PrunableRun], limits: Limits) -> list[PrunableRun]:
    """Prune, and return what was deleted; a run that was resumed meanwhile stays."""
    deleted = []
    with Progress() as progress:
        for old in progress.over(items, len(items), "runs"):
            if prune(database, old, limits):
                deleted.append(old)
    return deleted


def _print_result(items: list[PrunableRun], arguments: argparse.Namespace) -> None:
    chunks = sum(old.chunks for old in items)
    packed_bytes = sum(old.packed_bytes for old in items)
    if arguments.json:
        runs = [asdict(old) for old in items]
        totals = {
            "dry_run": arguments.dry_run,
            "whole": arguments.runs,
            "chunks": chunks,
            "packed_bytes": packed_bytes,
        }
        print(json.dumps({**totals, "runs": runs}))
        return
    if arguments.dry_run:
        for old in items:
            size = f"{old.chunks} chunks  {format_bytes(old.packed_bytes)}"
            print(f"{old.run_id}  {old.project}  {old.name}  {old.content}  {size}")
    verb = "would be deleted" if arguments.dry_run else "deleted"
    noun = "runs" if arguments.runs else "samples or rollups of runs"
    print(f"{noun}: {len(items)} {verb}, {chunks} chunks, {format_bytes(packed_bytes)}")
