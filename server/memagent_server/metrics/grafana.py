"""Push folder, data source, contact point, alert rules and dashboards to Grafana.

Fixed uids make it idempotent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memagent.errors import MemagentError
from memagent_server.files import resource_dir
from memagent_server.schemas.base import JsonObject
from memagent_server.settings import Settings

FOLDER_UID = "memagent"
FOLDER_TITLE = "memagent"
DATASOURCE_UID = "memagent-prometheus"
DATASOURCE_NAME = "memagent Prometheus"
CONTACT_UID = "memagent-contact"
CONTACT_NAME = "memagent"
DASHBOARD_FILES = ("fleet.json", "run.json", "server.json")
RULES_FILE = "provisioning/alerting/rules.json"
PROMETHEUS_RULES_FILE = "prometheus/rules.yml"
PLACEHOLDER_URL = "http://localhost:8420"
"""The server's address in the links of `dashboards/`, replaced by the real one."""


class GrafanaError(MemagentError):
    """Grafana refused a change; the message says what and why."""


@dataclass(frozen=True)
class Target:
    """Grafana's address, token and alert settings, and memagent's public address."""

    url: str
    token: str
    memagent_url: str
    prometheus_url: str | None = None
    """The address of Prometheus as Grafana sees it. None: use Grafana's existing data source."""
    slack_webhook_url: str | None = None
    email_to: tuple[str, ...] = ()


def target_of(settings: Settings, url: str, token: str, prometheus_url: str | None) -> Target:
    """Return the target that the server's settings describe."""
    return Target(
        url,
        token,
        settings.public_url,
        prometheus_url,
        settings.slack_webhook_url,
        settings.email_to,
    )


def dashboards(memagent_url: str) -> Iterator[tuple[str, JsonObject]]:
    """Yield (file name, dashboard) of each dashboard, with links to `memagent_url`."""
    for name in DASHBOARD_FILES:
        yield name, json.loads(_read_linked(name, memagent_url))


def export(to: Path, memagent_url: str) -> list[Path]:
    """Write the dashboards and the Prometheus rules into a folder; return the files."""
    to.mkdir(parents=True, exist_ok=True)
    files = []
    for name in (*DASHBOARD_FILES, PROMETHEUS_RULES_FILE):
        path = to / Path(name).name
        path.write_text(_read_linked(name, memagent_url))
        files.append(path)
    return files


def _read_linked(name: str, memagent_url: str) -> str:
    """Return a file of `dashboards/` with links to `memagent_url`."""
    return (resource_dir("dashboards") / name).read_text().replace(PLACEHOLDER_URL, memagent_url)


def push(target: Target, *, dry_run: bool = False) -> list[str]:
    """Create or update everything; return one line for each change. Raises GrafanaError."""
    try:
        from grafana_client.api import GrafanaApi
        from grafana_client.client import GrafanaException, TokenAuth
    except ModuleNotFoundError as error:
        raise GrafanaError(
            "Pushing dashboards needs grafana-client: pip install 'memagent[grafana]'"
        ) from error
    credential = TokenAuth(target.token)  # type: ignore[no-untyped-call]
    api = GrafanaApi.from_url(target.url, credential=credential, timeout=15.0)
    try:
        return list(_Push(api, target, dry_run).lines())
    except GrafanaException as error:
        raise GrafanaError(
            f"Grafana at {target.url} answered {error.status_code}: {error.message}"
        ) from None
    except OSError as error:  # the base of what requests raises
        raise GrafanaError(
            f"Cannot reach Grafana at {target.url}: {type(error).__name__}"
        ) from None


class _Push:
    """One push. A dry run sends nothing and reports what it would do."""

    def __init__(self, api: Any, target: Target, dry_run: bool) -> None:
        self._api = api
        self._target = target
        self._dry_run = dry_run

    def lines(self) -> Iterator[str]:
        yield self._folder()
        yield self._datasource()
        yield self._contact_point()
        yield from self._rules()
        yield from self._dashboards()

    def _done(self, what: str) -> str:
        return f"would be {what}" if self._dry_run else what

    def _folder(self) -> str:
        if any(folder["uid"] == FOLDER_UID for folder in self._api.folder.get_all_folders()):
            return f"folder {FOLDER_TITLE}: exists"
        if not self._dry_run:
            self._api.folder.create_folder(FOLDER_TITLE, uid=FOLDER_UID)
        return f"folder {FOLDER_TITLE}: {self._done('created')}"

    def _datasource(self) -> str:
        if self._target.prometheus_url is None:
            uid = self._datasource_uid()
            if uid is None:
                return "data source: Grafana has no Prometheus; name one with --prometheus URL"
            return f"data source {uid}: existing one used"
        body = {
            "uid": DATASOURCE_UID,
            "name": DATASOURCE_NAME,
            "type": "prometheus",
            "access": "proxy",
            "url": self._target.prometheus_url,
            "jsonData": {"httpMethod": "POST", "timeInterval": "10s"},
        }
        exists = any(
            source["uid"] == DATASOURCE_UID for source in self._api.datasource.list_datasources()
        )
        if not self._dry_run and exists:
            self._api.datasource.update_datasource_by_uid(DATASOURCE_UID, body)
        elif not self._dry_run:
            self._api.datasource.create_datasource(body)
        return f"data source {DATASOURCE_NAME}: {self._done('updated' if exists else 'created')}"

    def _datasource_uid(self) -> str | None:
        """Return the data source of the rules: memagent's, else the default Prometheus, else the
        first.
        """
        if self._target.prometheus_url is not None:
            return DATASOURCE_UID
        sources = self._api.datasource.list_datasources()
        candidates = [source for source in sources if source["type"] == "prometheus"]
        candidates.sort(
            key=lambda source: (source["uid"] != DATASOURCE_UID, not source.get("isDefault"))
        )
        return str(candidates[0]["uid"]) if candidates else None

    def _contact(self) -> JsonObject | None:
        if self._target.slack_webhook_url:
            kind, settings = "slack", {"url": self._target.slack_webhook_url}
        elif self._target.email_to:
            kind, settings = "email", {"addresses": ";".join(self._target.email_to)}
        else:
            return None
        return {"uid": CONTACT_UID, "name": CONTACT_NAME, "type": kind, "settings": settings}

    def _contact_point(self) -> str:
        body = self._contact()
        if body is None:
            return (
                "contact point: none, because neither MEMAGENT_SLACK_WEBHOOK_URL nor "
                "MEMAGENT_EMAIL_TO is set; the rules use Grafana's default route"
            )
        contact_points = self._api.alertingprovisioning.get_contactpoints()
        exists = any(point["uid"] == CONTACT_UID for point in contact_points)
        if not self._dry_run and exists:
            self._api.alertingprovisioning.update_contactpoint(CONTACT_UID, body)
        elif not self._dry_run:
            self._api.alertingprovisioning.create_contactpoint(body, disable_provenance=True)
        change = self._done("updated" if exists else "created")
        return f"contact point {CONTACT_NAME} ({body['type']}): {change}"

    def _rules(self) -> Iterator[str]:
        uid = self._datasource_uid()
        if uid is None:
            yield "alert rules: none, because they need a Prometheus data source"
            return
        uids = {rule["uid"] for rule in self._api.alertingprovisioning.get_alertrules_all()}
        for group in json.loads(_read_linked(RULES_FILE, self._target.memagent_url))["groups"]:
            for rule in group["rules"]:
                body = self._rule(rule, group["name"], uid)
                exists = rule["uid"] in uids
                if not self._dry_run and exists:
                    self._api.alertingprovisioning.update_alertrule(
                        rule["uid"], body, disable_provenance=True
                    )
                elif not self._dry_run:
                    self._api.alertingprovisioning.create_alertrule(body, disable_provenance=True)
                change = self._done("updated" if exists else "created")
                yield f"alert rule {rule['title']}: {change}"

    def _rule(self, rule: JsonObject, group: str, datasource_uid: str) -> JsonObject:
        data = [{**query, "datasourceUid": datasource_uid} for query in rule["data"]]
        body = {**rule, "data": data, "orgID": 1, "folderUID": FOLDER_UID, "ruleGroup": group}
        if self._contact() is not None:
            body["notification_settings"] = {"receiver": CONTACT_NAME}
        return body

    def _dashboards(self) -> Iterator[str]:
        for name, content in dashboards(self._target.memagent_url):
            if not self._dry_run:
                body = {
                    "dashboard": {**content, "id": None},
                    "folderUid": FOLDER_UID,
                    "overwrite": True,
                    "message": "memagent dashboards push",
                }
                self._api.dashboard.update_dashboard(body)
            yield f"{name} ({content['title']}): {self._done('written')}"
