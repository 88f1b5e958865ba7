"""Push the dashboards to Grafana (folder "memagent", fixed uids: again changes nothing), or write them to a folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from memagent.errors import SettingError
from memagent_server.grafana.push import export, push
from memagent_server.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="action", required=True, metavar="push|export")
    pushing = verbs.add_parser("push", help="create or update folder and dashboards in a Grafana")
    pushing.add_argument("--url", help="address of Grafana (default MEMAGENT_GRAFANA_URL)")
    pushing.add_argument("--token", help="service-account token (default MEMAGENT_GRAFANA_TOKEN)")
    pushing.add_argument("--dry-run", action="store_true", help="say what would be done, and change nothing")
    exporting = verbs.add_parser("export", help="write the dashboards as JSON files")
    exporting.add_argument("directory", type=Path)


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "export":
        lines = [f"wrote {path}" for path in export(arguments.directory)]
    else:
        settings = Settings.from_environ()
        url, token = arguments.url or settings.grafana_url, arguments.token or settings.grafana_token
        if not url or not token:
            raise SettingError(
                "say which Grafana: --url and --token, or MEMAGENT_GRAFANA_URL and MEMAGENT_GRAFANA_TOKEN"
            )
        lines = push(url, token, dry_run=arguments.dry_run)
    print("\n".join(lines))
    return 0
