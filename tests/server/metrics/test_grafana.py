"""`memagent dashboards` against a local HTTP server that stores what Grafana's API would store."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.python_fork import ForkServer

TOKEN = "glsa_secret"


class Grafana:
    """The endpoints that a push uses.

    Objects are stored by uid; duplicates are refused, as by Grafana.
    """

    def __init__(self) -> None:
        self.resources: dict[str, dict[str, dict]] = {name: {} for name in KINDS.values()}
        self.dashboards: dict[str, dict] = {}
        grafana = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self, status: int, content: object) -> None:
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def serve(self) -> None:
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    self.answer(401, {"message": "Invalid API key"})
                    return
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                self.answer(*grafana.serve(self.command, self.path, body))

            do_GET = do_POST = do_PUT = serve  # noqa: N815

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def serve(self, method: str, path: str, body: dict | None) -> tuple[int, object]:
        if path == "/api/dashboards/db":
            assert body["folderUid"] in self.resources["folders"]
            self.dashboards[body["dashboard"]["uid"]] = body["dashboard"]
            return 200, {"status": "success", "uid": body["dashboard"]["uid"]}
        route, kind = next((route, kind) for route, kind in KINDS.items() if path.startswith(route))
        resources = self.resources[kind]
        uid = path.removeprefix(route).lstrip("/").removeprefix("uid/")
        if method == "GET":
            return 200, list(resources.values())
        if method == "POST" and body["uid"] in resources:
            return 409, {"message": f"{kind}: a thing with that uid exists"}
        if method == "PUT" and uid not in resources:
            return 404, {"message": "not found"}
        if kind == "rules":
            assert body["folderUID"] in self.resources["folders"] and {
                "ruleGroup",
                "orgID",
                "title",
                "data",
            } <= set(body)
        resources[body["uid"]] = body
        return 200, body


KINDS = {
    "/api/folders": "folders",
    "/api/datasources": "datasources",
    "/api/v1/provisioning/contact-points": "contacts",
    "/api/v1/provisioning/alert-rules": "rules",
}


@pytest.fixture
def grafana():
    grafana = Grafana()
    yield grafana
    grafana.server.shutdown()
    grafana.server.server_close()


@pytest.fixture
def dashboards(memagent_fork: ForkServer) -> Callable[..., subprocess.CompletedProcess[str]]:
    """dashboards(*arguments, NAME="setting"): run `memagent dashboards` in another process."""
    return lambda *arguments, **environ: memagent_fork.run(
        "-m", "memagent", "dashboards", *map(str, arguments), env={**os.environ, **environ}
    )


def test_a_second_push_changes_nothing(grafana, dashboards):
    options = (
        "push",
        "--url",
        grafana.url,
        "--token",
        TOKEN,
        "--prometheus",
        "http://prometheus:9090",
    )
    environ = {
        "MEMAGENT_SLACK_WEBHOOK_URL": "https://hooks.slack.com/services/T/B/X",
        "MEMAGENT_PUBLIC_URL": "https://mem.example.org",
    }
    first = dashboards(*options, **environ)
    assert first.returncode == 0, first.stderr
    assert set(grafana.dashboards) == {"memagent-fleet", "memagent-run", "memagent-server"}
    assert (
        grafana.resources["datasources"]["memagent-prometheus"]["url"] == "http://prometheus:9090"
    )
    assert grafana.resources["contacts"]["memagent-contact"]["settings"] == {
        "url": environ["MEMAGENT_SLACK_WEBHOOK_URL"]
    }
    rules = grafana.resources["rules"]
    warning = rules["memagent-run-will-run-out-of-memory"]
    assert warning["notification_settings"] == {"receiver": "memagent"}
    assert warning["annotations"]["runbook_url"] == "https://mem.example.org/runbooks#oom_forecast"
    variables = {
        item["name"]: item for item in grafana.dashboards["memagent-fleet"]["templating"]["list"]
    }
    assert variables["memagent"]["query"] == environ["MEMAGENT_PUBLIC_URL"]
    before = json.dumps([grafana.resources, grafana.dashboards])
    second = dashboards(*options, **environ)
    assert second.returncode == 0 and "folder memagent: exists" in second.stdout, second.stderr
    assert json.dumps([grafana.resources, grafana.dashboards]) == before


def test_it_uses_grafanas_prometheus(grafana, dashboards):
    grafana.resources["datasources"] = {
        "loki": {"uid": "loki", "type": "loki"},
        "old": {"uid": "old", "type": "prometheus"},
        "main": {"uid": "main", "type": "prometheus", "isDefault": True},
    }
    result = dashboards("push", "--url", grafana.url, "--token", TOKEN)
    assert result.returncode == 0, result.stderr
    sources = {
        query["datasourceUid"]
        for rule in grafana.resources["rules"].values()
        for query in rule["data"]
    }
    assert sources == {"main"} and "data source main: existing one used" in result.stdout
    assert not grafana.resources["contacts"] and "contact point: none" in result.stdout
    assert all("notification_settings" not in rule for rule in grafana.resources["rules"].values())


def test_without_prometheus_it_asks_for_an_address(grafana, dashboards):
    result = dashboards("push", "--url", grafana.url, "--token", TOKEN)
    assert (
        result.returncode == 0
        and "--prometheus URL" in result.stdout
        and not grafana.resources["rules"]
    )
    assert len(grafana.dashboards) == 3


def test_a_dry_run_changes_nothing(grafana, dashboards):
    result = dashboards(
        "push", "--url", grafana.url, "--token", TOKEN, "--prometheus", "http://p", "--dry-run"
    )
    assert (
        result.returncode == 0
        and "would be created" in result.stdout
        and "would be written" in result.stdout
    )
    assert not any(grafana.resources.values()) and not grafana.dashboards


def test_a_bad_token_is_one_clear_line(grafana, dashboards):
    result = dashboards("push", "--url", grafana.url, "--token", "wrong-token")
    assert (
        result.returncode == 1
        and "answered 401" in result.stderr
        and result.stderr.count("\n") == 1
    )
    assert "wrong-token" not in result.stderr


def test_an_unreachable_grafana_is_one_clear_line(dashboards):
    result = dashboards("push", "--url", "http://127.0.0.1:9", "--token", TOKEN)
    assert (
        result.returncode == 1
        and result.stderr.count("\n") == 1
        and "Cannot reach Grafana" in result.stderr
    )


def test_without_an_address_it_names_the_setting(dashboards):
    result = dashboards("push")
    assert result.returncode == 2 and "MEMAGENT_GRAFANA_URL" in result.stderr


def test_export_writes_boards_and_rules_with_links_to_the_server(tmp_path, dashboards):
    assert (
        dashboards(
            "export", tmp_path / "out", MEMAGENT_PUBLIC_URL="https://mem.example.org"
        ).returncode
        == 0
    )
    texts = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert set(texts) == {"fleet.json", "run.json", "server.json", "rules.yml"}
    assert json.loads(texts["run.json"])["uid"] == "memagent-run"
    assert all(
        "https://mem.example.org" in text and "localhost" not in text for text in texts.values()
    )
