"""Let go of the samples of runs that ended long ago, or of the runs themselves. Charts of runs whose samples are gone stay, coarser."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict

from memagent.errors import SettingError
from memagent.units import format_bytes, parse_age
from memagent_server.settings import Settings
from memagent_server.store import migrate
from memagent_server.store.engine import Database
from memagent_server.store.retention import OldRun, drop_run, drop_samples, find_old


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        help="how long ago the run ended: 12h, 30d or 8w (default: MEMAGENT_RETENTION_DAYS; --runs needs it said)",
    )
    parser.add_argument("--project", help="of this project only")
    parser.add_argument("--runs", action="store_true", help="delete the runs, with all that is known of them")
    parser.add_argument("--dry-run", action="store_true", help="say what would go, and change nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    settings = Settings.from_environ()
    before = time.time() - _age_s(arguments, settings)
    database = Database(settings.database_url)
    try:
        migrate.upgrade(database)
        with database.read() as session:
            found = find_old(session, before, project=arguments.project, whole=arguments.runs)
        if not arguments.dry_run:
            found = _prune(database, found, before, whole=arguments.runs)
    finally:
        database.close()
    _tell(found, arguments)
    return 0


def _age_s(arguments: argparse.Namespace, settings: Settings) -> float:
    if arguments.older_than is None:
        if arguments.runs:
            raise SettingError("--runs deletes runs for good: say how old they must be, as in --older-than 90d")
        return settings.retention_days * 86_400.0
    return parse_age("--older-than", arguments.older_than)


def _prune(database: Database, found: list[OldRun], before: float, *, whole: bool) -> list[OldRun]:
    """Those that went; a run that was resumed meanwhile stays."""
    gone = []
    for number, old in enumerate(found, 1):
        _progress(f"{number} of {len(found)} runs")
        if (drop_run if whole else drop_samples)(database, old.run_id, before):
            gone.append(old)
    _progress("")
    return gone


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _tell(found: list[OldRun], arguments: argparse.Namespace) -> None:
    chunks, packed_bytes = sum(old.chunks for old in found), sum(old.packed_bytes for old in found)
    if arguments.json:
        runs = [asdict(old) for old in found]
        facts = {"dry_run": arguments.dry_run, "whole": arguments.runs, "chunks": chunks, "packed_bytes": packed_bytes}
        print(json.dumps({**facts, "runs": runs}))
        return
    if arguments.dry_run:
        for old in found:
            print(f"{old.run_id}  {old.project}  {old.name}  {old.chunks} chunks  {format_bytes(old.packed_bytes)}")
    verb = "would go" if arguments.dry_run else "went"
    what = "runs" if arguments.runs else "the samples of runs"
    print(f"{what}: {len(found)} {verb}, {chunks} chunks of samples, {format_bytes(packed_bytes)}")
