"""Puts folder, data source, contact point, alert rules and dashboards into a Grafana. All have fixed uids: twice changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memagent.errors import MemagentError
from memagent_server.resources import resource_dir
from memagent_server.settings import Settings

FOLDER_UID, FOLDER_TITLE = "memagent", "memagent"
DATASOURCE_UID, DATASOURCE_NAME = "memagent-prometheus", "memagent Prometheus"
CONTACT_UID, CONTACT_NAME = "memagent-contact", "memagent"
FILES = ("fleet.json", "run.json", "server.json")
RULES_FILE = "provisioning/alerting/rules.json"
PROMETHEUS_RULES_FILE = "prometheus/rules.yml"
PLACEHOLDER_URL = "http://localhost:8420"
"""Where links in `dashboards/` lead, to boards' runs and to runbooks, until somebody says where people find the server."""


class GrafanaError(MemagentError):
    """Grafana did not take something; the message says what and why."""


@dataclass(frozen=True)
class Target:
    """What goes where: Grafana's address and token, memagent's own address for links, and what the alerts of Grafana need."""

    url: str
    token: str
    memagent_url: str
    prometheus_url: str | None = None
    """Where Grafana finds Prometheus; without it, Grafana's own Prometheus data source is used."""
    slack_webhook_url: str | None = None
    email_to: tuple[str, ...] = ()


def target(settings: Settings, url: str, token: str, prometheus_url: str | None) -> Target:
    """The target that the server's settings describe."""
    return Target(
        url,
        token,
        settings.public_url,
        prometheus_url,
        settings.slack_webhook_url,
        settings.email_to,
    )


def dashboards(memagent_url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(file name, dashboard) of each dashboard that comes with memagent; its links lead to `memagent_url`."""
    for name in FILES:
        yield name, json.loads(_linked(name, memagent_url))


def export(to: Path, memagent_url: str) -> list[Path]:
    """Write the dashboards, and the rules for Prometheus, into a folder; returns the files."""
    to.mkdir(parents=True, exist_ok=True)
    written = []
    for name in (*FILES, PROMETHEUS_RULES_FILE):
        path = to / Path(name).name
        path.write_text(_linked(name, memagent_url))
        written.append(path)
    return written


def _linked(name: str, memagent_url: str) -> str:
    """A file of `dashboards/` whose links lead to `memagent_url`."""
    return (resource_dir("dashboards") / name).read_text().replace(PLACEHOLDER_URL, memagent_url)


def push(to: Target, *, dry_run: bool = False) -> list[str]:
    """Create or update everything; returns a line for each thing done. Raises GrafanaError."""
    try:
        from grafana_client.api import GrafanaApi
        from grafana_client.client import GrafanaException, TokenAuth
    except ModuleNotFoundError as error:
        raise GrafanaError(
            "pushing dashboards needs grafana-client: pip install 'memagent[grafana]'"
        ) from error
    api = GrafanaApi.from_url(to.url, credential=TokenAuth(to.token), timeout=15.0)  # type: ignore[no-untyped-call]
    try:
        return list(_Push(api, to, dry_run).lines())
    except GrafanaException as error:
        raise GrafanaError(
            f"Grafana at {to.url} answered {error.status_code}: {error.message}"
        ) from None
    except OSError as error:  # what requests and its kin raise derives from it
        raise GrafanaError(
            f"Grafana at {to.url} cannot be reached: {type(error).__name__}"
        ) from None


class _Push:
    """One push. In a dry run nothing is sent, and the lines say what would be."""

    def __init__(self, api: Any, to: Target, dry_run: bool) -> None:
        self._api, self._to, self._dry_run = api, to, dry_run

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
            return f"folder {FOLDER_TITLE}: there already"
        if not self._dry_run:
            self._api.folder.create_folder(FOLDER_TITLE, uid=FOLDER_UID)
        return f"folder {FOLDER_TITLE}: {self._done('made')}"

    def _datasource(self) -> str:
        if self._to.prometheus_url is None:
            found = self._datasource_uid()
            if found is None:
                return "data source: none, and Grafana has no Prometheus: say where it is with --prometheus URL"
            return f"data source {found}: Grafana's own is used"
        body = {
            "uid": DATASOURCE_UID,
            "name": DATASOURCE_NAME,
            "type": "prometheus",
            "access": "proxy",
            "url": self._to.prometheus_url,
            "jsonData": {"httpMethod": "POST", "timeInterval": "10s"},
        }
        is_there = any(
            source["uid"] == DATASOURCE_UID for source in self._api.datasource.list_datasources()
        )
        if not self._dry_run and is_there:
            self._api.datasource.update_datasource_by_uid(DATASOURCE_UID, body)
        elif not self._dry_run:
            self._api.datasource.create_datasource(body)
        return f"data source {DATASOURCE_NAME}: {self._done('written' if is_there else 'made')}"

    def _datasource_uid(self) -> str | None:
        """The Prometheus that rules ask: ours, else Grafana's default, else its first."""
        if self._to.prometheus_url is not None:
            return DATASOURCE_UID
        found = [
            source
            for source in self._api.datasource.list_datasources()
            if source["type"] == "prometheus"
        ]
        found.sort(
            key=lambda source: (source["uid"] != DATASOURCE_UID, not source.get("isDefault"))
        )
        return str(found[0]["uid"]) if found else None

    def _contact(self) -> dict[str, Any] | None:
        if self._to.slack_webhook_url:
            kind, settings = "slack", {"url": self._to.slack_webhook_url}
        elif self._to.email_to:
            kind, settings = "email", {"addresses": ";".join(self._to.email_to)}
        else:
            return None
        return {"uid": CONTACT_UID, "name": CONTACT_NAME, "type": kind, "settings": settings}

    def _contact_point(self) -> str:
        body = self._contact()
        if body is None:
            return (
                "contact point: none, for neither MEMAGENT_SLACK_WEBHOOK_URL nor MEMAGENT_EMAIL_TO is set; "
                "the rules go where Grafana sends what has no route"
            )
        known = self._api.alertingprovisioning.get_contactpoints()
        is_there = any(point["uid"] == CONTACT_UID for point in known)
        if not self._dry_run and is_there:
            self._api.alertingprovisioning.update_contactpoint(CONTACT_UID, body)
        elif not self._dry_run:
            self._api.alertingprovisioning.create_contactpoint(body, disable_provenance=True)
        return f"contact point {CONTACT_NAME} ({body['type']}): {self._done('written' if is_there else 'made')}"

    def _rules(self) -> Iterator[str]:
        uid = self._datasource_uid()
        if uid is None:
            yield "alert rules: none, for they need a Prometheus data source"
            return
        known = {rule["uid"] for rule in self._api.alertingprovisioning.get_alertrules_all()}
        for group in json.loads(_linked(RULES_FILE, self._to.memagent_url))["groups"]:
            for rule in group["rules"]:
                body = self._rule(rule, group["name"], uid)
                if not self._dry_run and rule["uid"] in known:
                    self._api.alertingprovisioning.update_alertrule(
                        rule["uid"], body, disable_provenance=True
                    )
                elif not self._dry_run:
                    self._api.alertingprovisioning.create_alertrule(body, disable_provenance=True)
                yield f"alert rule {rule['title']}: {self._done('written' if rule['uid'] in known else 'made')}"

    def _rule(self, rule: dict[str, Any], group: str, datasource_uid: str) -> dict[str, Any]:
        data = [{**query, "datasourceUid": datasource_uid} for query in rule["data"]]
        body = {**rule, "data": data, "orgID": 1, "folderUID": FOLDER_UID, "ruleGroup": group}
        if self._contact() is not None:
            body["notification_settings"] = {"receiver": CONTACT_NAME}
        return body

    def _dashboards(self) -> Iterator[str]:
        for name, content in dashboards(self._to.memagent_url):
            if not self._dry_run:
                body = {
                    "dashboard": {**content, "id": None},
                    "folderUid": FOLDER_UID,
                    "overwrite": True,
                    "message": "memagent dashboards push",
                }
                self._api.dashboard.update_dashboard(body)
            yield f"{name} ({content['title']}): {self._done('written')}"
