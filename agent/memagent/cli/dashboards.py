"""Push dashboards, data source, contact point and alert rules to a Grafana (again changes nothing), or write them to a folder."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from memagent.errors import MemagentError, SettingError
from memagent_server.grafana.push import export, push, target_of
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
        help="where Grafana reaches Prometheus (default: a data source that it has)",
    )
    pushing.add_argument(
        "--dry-run", action="store_true", help="say what would be done, and change nothing"
    )
    exporting = verbs.add_parser(
        "export", help="write the dashboards as JSON files, and the rules for Prometheus"
    )
    exporting.add_argument("directory", type=Path)
    for one in (pushing, exporting):
        one.add_argument("--json", action="store_true", help="print JSON")


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
                "say which Grafana: --url and --token, or MEMAGENT_GRAFANA_URL and MEMAGENT_GRAFANA_TOKEN"
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
            f"the dashboards cannot be written to {directory}: {error.strerror}"
        ) from error
