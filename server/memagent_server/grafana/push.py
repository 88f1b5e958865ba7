"""Puts folder and dashboards into a Grafana. Doing it twice changes nothing: all have fixed uids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memagent.errors import MemagentError
from memagent_server.resources import resource_dir

FOLDER_UID, FOLDER_TITLE = "memagent", "memagent"
FILES = ("fleet.json", "run.json")


class GrafanaError(MemagentError):
    """Grafana did not take something; the message says what and why."""


def dashboards() -> Iterator[tuple[str, dict[str, Any]]]:
    """(file name, dashboard) of each dashboard that comes with memagent."""
    folder = resource_dir("dashboards")
    for name in FILES:
        yield name, json.loads((folder / name).read_text())


def export(target: Path) -> list[Path]:
    """Write the dashboards into a folder; returns the files."""
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for name, content in dashboards():
        path = target / name
        path.write_text(json.dumps(content, indent=2) + "\n")
        written.append(path)
    return written


def push(url: str, token: str, *, dry_run: bool = False) -> list[str]:
    """Create or update everything; returns a line for each thing done. Raises GrafanaError."""
    try:
        from grafana_client.api import GrafanaApi
        from grafana_client.client import GrafanaException, TokenAuth
    except ModuleNotFoundError as error:
        raise GrafanaError("pushing dashboards needs grafana-client: pip install 'memagent[grafana]'") from error
    api = GrafanaApi.from_url(url, credential=TokenAuth(token), timeout=15.0)  # type: ignore[no-untyped-call]
    try:
        return [*_ensure_folder(api, dry_run), *_ensure_dashboards(api, dry_run)]
    except GrafanaException as error:
        raise GrafanaError(f"Grafana at {url} answered {error.status_code}: {error.message}") from None
    except OSError as error:  # what requests and its kin raise derives from it
        raise GrafanaError(f"Grafana at {url} cannot be reached: {type(error).__name__}") from None


def _ensure_folder(api: Any, dry_run: bool) -> list[str]:
    if any(folder["uid"] == FOLDER_UID for folder in api.folder.get_all_folders()):
        return [f"folder {FOLDER_TITLE}: there already"]
    if not dry_run:
        api.folder.create_folder(FOLDER_TITLE, uid=FOLDER_UID)
    return [f"folder {FOLDER_TITLE}: {'would be made' if dry_run else 'made'}"]


def _ensure_dashboards(api: Any, dry_run: bool) -> list[str]:
    done = []
    for name, content in dashboards():
        if not dry_run:
            body = {
                "dashboard": {**content, "id": None},
                "folderUid": FOLDER_UID,
                "overwrite": True,
                "message": "memagent dashboards push",
            }
            api.dashboard.update_dashboard(body)
        done.append(f"{name} ({content['title']}): {'would be written' if dry_run else 'written'}")
    return done
