"""Push dashboards, data source, contact point and alert rules to Grafana, or export them.

A second push changes nothing."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from memagent.errors import MemagentError, SettingError
from memagent_server.metrics.grafana import export, push, target_of
from memagent_server.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="action", required=True, metavar="push|export")
    pushing = verbs.add_parser(
        "push", help="create or update folder, data source, contact point, rules and dashboards"
    )
    pushing.add_argument("--url", help="address of Grafana (default MEMAGENT_GRAFANA_URL)")
    pushing.add_argument("--token", help="service-account token (default MEMAGENT_GRAFANA_TOKEN)")
    pushing.add_argument(
        "--prometheus",
        metavar="URL",
        help="address at which Grafana reaches Prometheus (default: an existing data source)",
    )
    pushing.add_argument(
        "--dry-run", action="store_true", help="show what would be done without changing anything"
    )
    exporting = verbs.add_parser(
        "export", help="write the dashboards as JSON files, and the rules for Prometheus"
    )
    exporting.add_argument("directory", type=Path)
    for parser_of_action in (pushing, exporting):
        parser_of_action.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "export":
        lines = [f"wrote {path}" for path in _export(arguments.directory)]
    else:
        settings = Settings.from_environ()
        url, token = (
            arguments.url or settings.grafana_url,
            arguments.token or settings.grafana_token,
        )
        if not url or not token:
            raise SettingError(
                "No Grafana given: use --url and --token, "
                "or set MEMAGENT_GRAFANA_URL and MEMAGENT_GRAFANA_TOKEN."
            )
        lines = push(
            target_of(settings, url, token, arguments.prometheus), dry_run=arguments.dry_run
        )
    print(json.dumps({"done": lines}) if arguments.json else "\n".join(lines))
    return 0


def _export(directory: Path) -> list[Path]:
    try:
        return export(directory, Settings.from_environ().public_url)
    except OSError as error:
        raise MemagentError(
            f"the dashboards could not be written to {directory}: {error.strerror}"
        ) from error
