"""Uploads are data and never executed."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import msgspec
import pytest

import memagent
import memagent_server

SERVER, AGENT = (Path(package.__file__).parent for package in (memagent_server, memagent))
READ_BY_THE_SERVER = (*SERVER.rglob("*.py"), *(AGENT / "wire").rglob("*.py"))
FORBIDDEN = {
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
    "torch",
    "yaml",
}
CALLS = {"eval", "exec", "compile", "__import__", "system", "popen"}


def imports_and_calls(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield f"{node.func.id}()"
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            yield f"{node.func.attr}()" if node.func.value.id == "os" else ""


def test_no_code_of_the_server_can_unpickle_or_evaluate():
    assert len(READ_BY_THE_SERVER) > 90
    wrong = FORBIDDEN | {f"{name}()" for name in CALLS}
    assert [
        (path.name, item)
        for path in READ_BY_THE_SERVER
        for item in imports_and_calls(path)
        if item in wrong
    ] == []


class Bomb:
    """Unpickling it creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    "content_type",
    ["application/octet-stream", "application/msgpack", "application/json", "application/x-pickle"],
)
@pytest.mark.parametrize(
    "wrap",
    [bytes, lambda bomb: msgspec.msgpack.encode({"seq": 0, "device": "host", "stacks": bomb})],
)
def test_a_pickle_is_refused_and_never_loaded(sqlite_client, tmp_path, content_type, wrap):
    sqlite_client.post("/api/v1/runs", json={"run_id": "r"})
    mark = tmp_path / "opened"
    response = sqlite_client.post(
        "/api/v1/runs/r/snapshots", data=wrap(pickle.dumps(Bomb(mark))), content_type=content_type
    )
    assert response.status_code in (400, 415, 422)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists(), "the bomb works"
