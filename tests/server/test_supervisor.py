"""`memagent serve`, `db` and `token` as processes."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import psutil
import pytest
import urllib3

from memagent.delivery.api_client import ApiClient
from tests.live_server import SECRET_KEY, LiveServer
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group("supervisor")


@pytest.fixture(scope="module")
def servers():
    started = []
    yield started
    for server in started:
        server.kill()


@pytest.fixture
def server(servers, tmp_path_factory):
    """A server with a worker: that of the test before, unless this one has ended it."""
    if not servers or servers[-1].process.poll() is not None:
        folder = tmp_path_factory.mktemp("server")
        environ = {"MEMAGENT_LOG_FORMAT": "json"}
        servers.append(LiveServer.start(folder, "127.0.0.1:0", (), environ))
    return servers[-1]


@pytest.fixture
def sqlite_lock():
    """with sqlite_lock(server): nothing else can write to its database."""

    @contextlib.contextmanager
    def locked(server):
        with contextlib.closing(
            sqlite3.connect(server.data / "memagent.db", isolation_level=None)
        ) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("COMMIT")

    return locked


@pytest.fixture
def start_gunicorn(tmp_path, memagent):
    """The app in gunicorn, as in docs/serving.md."""
    pytest.importorskip("gunicorn") if not os.environ.get("CI") else None
    started = []

    def start(**variables):
        memagent("db", "upgrade")
        data = tmp_path / "server"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        command = [
            "gunicorn",
            "--bind",
            address,
            "--worker-class",
            "gthread",
            "--threads",
            "8",
            "--no-control-socket",
        ]
        environ = {
            **os.environ,
            "XDG_DATA_HOME": str(data),
            "MEMAGENT_OPEN": "1",
            "MEMAGENT_SECRET_KEY": SECRET_KEY,
            "MEMAGENT_DATABASE_URL": f"sqlite:///{data}/memagent.db",
            "MEMAGENT_LISTEN": address,
            **variables,
        }
        with (data / "stderr.log").open("a") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", *command, "memagent_server.supervisor:wsgi_app()"],
                env=environ,
                stderr=errors,
            )
        server = SimpleNamespace(process=process, url=f"http://{address}", data=data)
        server.post = lambda path, body: urllib3.request("POST", server.url + path, json=body)
        started.append(process)
        wait_until(lambda: answers(server, "/readyz"))
        return server

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_gunicorn_has_tokens_for_agents_of_the_same_user(start_gunicorn, monkeypatch):
    server = start_gunicorn(MEMAGENT_OPEN="0", WEB_CONCURRENCY="2")
    assert server.post("/api/v1/runs", {"run_id": "r"}).status == 401
    monkeypatch.setenv("XDG_DATA_HOME", str(server.data))
    with contextlib.closing(ApiClient(server.url, local_scope="ingest")) as client:
        assert client.request("/api/v1/runs", method="POST", body=b'{"run_id": "r"}').status == 201
    with contextlib.closing(ApiClient(server.url)) as client:
        assert client.request("/api/v1/runs/r").status == 200


def children_of(server):
    return psutil.Process(server.process.pid).children(recursive=True)


def wait_for_the_end_of(processes):
    def is_alive(process):
        with contextlib.suppress(psutil.NoSuchProcess):
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return False

    wait_until(lambda: not any(map(is_alive, processes)))


def pids_of(server, word):
    """Live children whose command line contains `word`."""
    results = []
    for child in children_of(server):
        with contextlib.suppress(psutil.NoSuchProcess):  # zombies too
            results += [child.pid] if word in " ".join(child.cmdline()) else []
    return results


def answers(server, path="/healthz"):
    with contextlib.suppress(urllib3.exceptions.HTTPError):
        return urllib3.request("GET", server.url + path, retries=False).status == 200
    return False


WEB, WORKER = "spawn_main", "--role worker"
OWNER = """
import os, subprocess, sys
serve = [sys.executable, "-m", "memagent", *sys.argv[1:], "--parent", str(os.getpid())]
subprocess.run(serve)
"""


def test_it_takes_a_free_port_and_prints_its_address(server):
    assert server.url.startswith("http://127.0.0.1:")
    assert server.get("/healthz").json["status"] == "ok"
    wait_until(lambda: server.get("/readyz").json == {"status": "ready", "workers": 1})
    assert server.post("/api/v1/runs", {"run_id": "r"}).status == 201
    assert [run["id"] for run in server.get("/api/v1/runs").json["runs"]] == ["r"]


def test_the_json_log_has_the_request_id(server):
    server.get("/api/v1/runs/none", x_request_id="the-one")
    lines = [json.loads(line) for line in server.errors.splitlines()]
    (line,) = [line for line in lines if line.get("request_id") == "the-one"]
    assert (line["logger"], line["message"], line["status"]) == (
        "memagent.access",
        "GET /api/v1/runs/none",
        404,
    )


def test_a_port_in_use_is_one_clear_line(server, memagent):
    address = server.url.removeprefix("http://")
    done = memagent("serve", "--listen", address)
    assert done.returncode == 1
    assert (
        done.stderr
        == f"memagent: cannot listen on {address}: the port is in use; choose another address with --listen HOST:PORT\n"
    )


def test_an_unread_body_keeps_the_connection(server):
    host, port = server.url.removeprefix("http://").split(":")
    head = (
        "POST /api/v1/channels/none/test HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n"
    )
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    connection.connect()
    for _ in range(2):
        connection.sock.sendall(head.encode())
        time.sleep(
            0.3
        )  # clients send headers and body separately, and the network can delay either
        connection.sock.sendall(b"{}")
        response = http.client.HTTPResponse(connection.sock, method="POST")
        response.begin()
        assert response.status == 404 and response.read()
    connection.close()


def test_a_dead_worker_is_restarted(server):
    wait_until(lambda: len(pids_of(server, WORKER)) == 1)
    (first,) = pids_of(server, WORKER)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: set(pids_of(server, WORKER)) - {first})
    assert "restarting in" in server.errors


def test_a_dead_web_process_is_restarted(server):
    (first,) = pids_of(server, WEB)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: set(pids_of(server, WEB)) - {first} and answers(server))
    assert "Unexpected exit from worker-1" in server.errors


@pytest.mark.parametrize("serve", ["granian", "gunicorn"])
def test_requests_accepted_before_a_stop_are_answered_and_stored(
    serve, request, start_gunicorn, sqlite_lock
):
    server = request.getfixturevalue("server") if serve == "granian" else start_gunicorn()
    patient = partial(urllib3.request, timeout=60.0, retries=False)
    server.post("/api/v1/runs", {"run_id": "stopped"})
    children = children_of(server)
    with ThreadPoolExecutor(6) as pool, sqlite_lock(server):
        posted = [
            pool.submit(
                patient,
                "POST",
                f"{server.url}/api/v1/runs/stopped/batches",
                json={"seq": 0, "rank": rank},
            )
            for rank in range(6)
        ]
        wait_until(lambda: all(future.running() for future in posted))
        time.sleep(0.5)  # the requests wait for the lock inside the server
        server.process.terminate()
        time.sleep(0.5)
        assert not any(future.done() for future in posted)
    assert [future.result().status for future in posted] == [200] * 6
    assert server.process.wait(60) == 0
    wait_for_the_end_of(children)
    with contextlib.closing(sqlite3.connect(server.data / "memagent.db")) as database:
        assert database.execute("SELECT count(*) FROM batches").fetchone() == (6,)


def test_children_of_a_killed_parent_exit_and_free_its_port_and_its_folder(server, start_server):
    children = children_of(server)
    assert len(children) >= 2
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    wait_for_the_end_of(children)
    (left,) = server.data.glob("memagent-counts-*")
    address = server.url.removeprefix("http://")
    successor = start_server("--role", "web", listen=address, data=server.data)
    (result,) = server.data.glob("memagent-counts-*")
    assert result != left and list(result.glob("*.db")), "its own, which is in use"
    children = children_of(successor)
    successor.process.send_signal(signal.SIGINT)
    assert successor.process.wait(60) == 0
    wait_for_the_end_of(children)
    assert "Traceback" not in successor.errors


def test_with_a_token_it_listens_anywhere_and_requires_it(start_server, memagent):
    """It has two web processes and no worker. It exits with its parent, like the demo's server."""
    token = memagent("token", "create", "ana", "--scope", "read").stdout.strip()
    options = ("--role", "web", "--workers", "2")
    server = start_server(*options, listen="0.0.0.0:0", program=("-c", OWNER))
    family = children_of(server)
    authorized = partial(server.get, authorization=f"Bearer {token}")
    assert server.get("/api/v1/runs").status == 401
    assert authorized("/api/v1/runs").status == 200
    assert (len(pids_of(server, WEB)), len(pids_of(server, WORKER))) == (2, 0)
    assert {server.get("/healthz").status for _ in range(10)} == {200}
    wanted = 'memagent_http_requests_total{method="GET",route="/healthz",status="200"}'
    lines = authorized("/metrics").body.decode().splitlines()
    (line,) = [line for line in lines if line.startswith(wanted)]
    assert float(line.split()[-1]) >= 10, (
        "whichever process is scraped, it knows what the other one counted"
    )
    os.kill(server.process.pid, signal.SIGKILL)
    wait_for_the_end_of(family)


@pytest.mark.parametrize(("name", "value"), [("FORMAT", "xml"), ("LEVEL", "loud")])
def test_an_unknown_log_format_is_bad_usage(memagent, name, value):
    done = memagent("serve", environ={f"MEMAGENT_LOG_{name}": value})
    assert (done.returncode, done.stderr.count("\n")) == (
        2,
        1,
    ) and f"MEMAGENT_LOG_{name}" in done.stderr


@pytest.mark.parametrize("listen", ["nonsense", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:x"])
def test_an_invalid_address_is_bad_usage(memagent, listen):
    done = memagent("serve", "--listen", listen)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "MEMAGENT_LISTEN" in done.stderr


def test_without_tokens_it_refuses_to_listen_beyond_loopback(memagent):
    done = memagent("serve", "--listen", "0.0.0.0:0")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "memagent token create" in done.stderr


def test_a_newer_database_is_refused_in_one_line(memagent, tmp_path):
    memagent("db", "upgrade")
    connection = sqlite3.connect(tmp_path / "server" / "memagent.db")
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    for arguments in (("serve", "--listen", "127.0.0.1:0"), ("db", "upgrade"), ("token", "list")):
        done = memagent(*arguments)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "9999" in done.stderr


def test_a_missing_database_is_one_line(memagent):
    url = "postgresql://nobody@127.0.0.1:1/none"
    for arguments in (("serve", "--listen", "127.0.0.1:0"), ("db", "current"), ("token", "list")):
        done = memagent(*arguments, environ={"MEMAGENT_DATABASE_URL": url})
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "database" in done.stderr


def test_db_prints_its_version(memagent):
    before = json.loads(memagent("db", "current", "--json").stdout)
    assert (before["version"], before["is_current"]) == (None, False)
    assert "memagent db upgrade" in memagent("db", "current").stdout
    after = json.loads(memagent("db", "upgrade", "--json").stdout)
    assert after == {"version": before["head"], "head": before["head"], "is_current": True}
    assert "is current" in memagent("db", "current").stdout


def test_tokens_are_created_listed_and_revoked(memagent):
    created = json.loads(memagent("token", "create", "ci", "--scope", "ingest", "--json").stdout)
    assert created["token"].startswith("mag_")
    (listed,) = json.loads(memagent("token", "list", "--json").stdout)
    assert (listed["name"], listed["scope"], listed["revoked_at"]) == ("ci", "ingest", None)
    assert "token" not in listed
    assert memagent("token", "revoke", "ci").stdout == "revoked 1 token\n"
    assert memagent("token", "revoke", "ci").returncode == 1
    assert "revoked" in memagent("token", "list").stdout
