"""An API server of Kubernetes that keeps objects in memory: enough for Helm, and runs no pod."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

KINDS = {
    "v1": {"Secret": "secrets", "ConfigMap": "configmaps", "Service": "services", "Pod": "pods"},
    "apps/v1": {"Deployment": "deployments", "StatefulSet": "statefulsets"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "networking.k8s.io/v1": {"Ingress": "ingresses"},
}
NO_SCHEMA = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


class KubernetesApi:
    """Objects by path. It checks nothing: tests compare with the schemas of Kubernetes themselves."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        handler = type("Handler", (_Handler,), {"objects": self.objects})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def kubeconfig(self) -> str:
        address = f"http://127.0.0.1:{self._server.server_port}"
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "memory", "cluster": {"server": address}}],
                "contexts": [{"name": "memory", "context": {"cluster": "memory"}}],
                "current-context": "memory",
            }
        )

    def kinds(self) -> set[str]:
        return {stored["kind"] for stored in self.objects.values()}

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    objects: dict[str, dict[str, Any]]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/openapi/v2":
            self._send(200, b"", NO_SCHEMA)
        elif (found := _discovery(path) or self.objects.get(path)) is not None:
            self._answer(found)
        else:
            self._missing()

    def do_POST(self) -> None:
        sent = self._body()
        self._store(f"{self.path.partition('?')[0]}/{sent['metadata']['name']}", sent)

    def do_PATCH(self) -> None:
        self._store(self.path.partition("?")[0], self._body())

    def do_DELETE(self) -> None:
        self._body()
        found = self.objects.pop(self.path.partition("?")[0], None)
        self._answer(found) if found else self._missing()

    def _store(self, path: str, sent: dict[str, Any]) -> None:
        texts = sent.pop("stringData", {})
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        if encoded:
            sent["data"] = sent.get("data", {}) | encoded
        self.objects[path] = sent
        self._answer(sent)

    def _body(self) -> Any:
        return yaml.safe_load(self.rfile.read(int(self.headers.get("content-length", 0))))

    def _missing(self) -> None:
        status = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound"}
        self._answer({**status, "code": 404}, 404)

    def _answer(self, answer: Any, code: int = 200) -> None:
        self._send(code, json.dumps(answer).encode(), "application/json")

    def _send(self, code: int, body: bytes, content_type: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Write no line for each request."""


def _discovery(path: str) -> dict[str, Any] | None:
    """Return what a client reads first: the version, and which kinds exist."""
    if path == "/version":
        return {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = [_group(version) for version in KINDS if "/" in version]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    version = path.removeprefix("/apis/" if path.startswith("/apis/") else "/api/")
    if version in KINDS:
        return {
            "kind": "APIResourceList",
            "groupVersion": version,
            "resources": [
                {"name": name, "kind": kind, "namespaced": True, "verbs": ["get", "list"]}
                for kind, name in KINDS[version].items()
            ],
        }
    return None


def _group(version: str) -> dict[str, Any]:
    entry = {"groupVersion": version, "version": "v1"}
    return {"name": version.partition("/")[0], "versions": [entry], "preferredVersion": entry}
