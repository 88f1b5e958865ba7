"""`memagent dashboards` against a local HTTP server that keeps what Grafana's API would keep."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

TOKEN = "glsa_secret"


class Grafana:
    """The endpoints that a push uses: search folders, create a folder, write a dashboard. State is really kept."""

    def __init__(self) -> None:
        self.folders: dict[str, str] = {}
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

            def is_allowed(self) -> bool:
                if self.headers.get("Authorization") == f"Bearer {TOKEN}":
                    return True
                self.answer(401, {"message": "Invalid API key"})
                return False

            def do_GET(self):
                if self.is_allowed():
                    self.answer(200, [{"uid": uid, "title": title} for uid, title in grafana.folders.items()])

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if not self.is_allowed():
                    return
                if self.path == "/api/folders":
                    if body["uid"] in grafana.folders:
                        self.answer(409, {"message": "a folder with that uid exists"})
                        return
                    grafana.folders[body["uid"]] = body["title"]
                    self.answer(200, body)
                else:
                    assert self.path == "/api/dashboards/db" and body["folderUid"] in grafana.folders
                    grafana.dashboards[body["dashboard"]["uid"]] = body["dashboard"]
                    self.answer(200, {"status": "success", "uid": body["dashboard"]["uid"]})

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def grafana():
    grafana = Grafana()
    yield grafana
    grafana.server.shutdown()
    grafana.server.server_close()


def memagent(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "memagent", "dashboards", *map(str, arguments)], capture_output=True, text=True
    )


def test_a_push_makes_folder_and_dashboards_and_a_second_changes_nothing(grafana):
    first = memagent("push", "--url", grafana.url, "--token", TOKEN)
    assert first.returncode == 0, first.stderr
    assert grafana.folders == {"memagent": "memagent"} and set(grafana.dashboards) == {"memagent-fleet", "memagent-run"}
    before = json.dumps(grafana.dashboards)
    second = memagent("push", "--url", grafana.url, "--token", TOKEN)
    assert second.returncode == 0 and "there already" in second.stdout
    assert json.dumps(grafana.dashboards) == before


def test_a_dry_run_changes_nothing(grafana):
    result = memagent("push", "--url", grafana.url, "--token", TOKEN, "--dry-run")
    assert result.returncode == 0 and "would be made" in result.stdout and "would be written" in result.stdout
    assert not grafana.folders and not grafana.dashboards


def test_a_bad_token_is_one_clear_line(grafana):
    result = memagent("push", "--url", grafana.url, "--token", "wrong-token")
    assert result.returncode == 1 and "answered 401" in result.stderr and result.stderr.count("\n") == 1
    assert "wrong-token" not in result.stderr


def test_a_grafana_that_is_not_there_is_one_clear_line():
    result = memagent("push", "--url", "http://127.0.0.1:9", "--token", TOKEN)
    assert result.returncode == 1 and result.stderr.count("\n") == 1 and "cannot be reached" in result.stderr


def test_without_address_it_says_what_to_give():
    result = memagent("push")
    assert result.returncode == 2 and "MEMAGENT_GRAFANA_URL" in result.stderr


def test_export_writes_the_files(tmp_path):
    assert memagent("export", tmp_path / "out").returncode == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"fleet.json", "run.json"}
    assert json.loads((tmp_path / "out/run.json").read_text())["uid"] == "memagent-run"
