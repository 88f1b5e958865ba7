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

from tests.python_fork import ForkServer


def wait_for(condition, timeout_s=20.0):
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def warm_server():
    """Runs `memagent VERB` without importing the server each time."""
    python = ForkServer("memagent_server.app", "memagent_server.supervisor", "memagent.cli")
    yield python
    python.close()


@pytest.fixture
def memagent(warm_server, tmp_path):
    """Run `memagent VERB ...` over the database that `start_server` uses."""

    def memagent(*arguments, environ=None):
        data = tmp_path / "server"
        data.mkdir(exist_ok=True)
        own = {
            "XDG_DATA_HOME": str(data),
            "MEMAGENT_SECRET_KEY": "a secret key for tests only",
            "MEMAGENT_DATABASE_URL": f"sqlite:///{data}/memagent.db",
        }
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("MEMAGENT_")
        }
        return warm_server.run(
            "-m", "memagent", *arguments, env={**inherited, **own, **(environ or {})}
        )

    return memagent


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

    def start():
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
            "MEMAGENT_SECRET_KEY": "a secret key for tests only",
            "MEMAGENT_DATABASE_URL": f"sqlite:///{data}/memagent.db",
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

        def answers():
            with contextlib.suppress(urllib3.exceptions.HTTPError):
                return urllib3.request("GET", f"{server.url}/readyz", retries=False).status == 200

        wait_for(answers)
        return server

    yield start
    for process in started:
        process.kill()
        process.wait()


def children_of(server):
    return psutil.Process(server.process.pid).children(recursive=True)


def pids_of(server, word):
    """Live children whose command line contains `word`."""
    results = []
    for child in children_of(server):
        with contextlib.suppress(psutil.NoSuchProcess):  # zombies too
            results += [child.pid] if word in " ".join(child.cmdline()) else []
    return results


WEB, WORKER = "spawn_main", "--role worker"


def test_it_takes_a_free_port_and_prints_its_address(live_server):
    assert live_server.url.startswith("http://127.0.0.1:")
    assert live_server.get("/healthz").json["status"] == "ok"
    wait_for(lambda: live_server.get("/readyz").json == {"status": "ready", "workers": 1})
    assert live_server.post("/api/v1/runs", {"run_id": "r"}).status == 201
    assert [run["id"] for run in live_server.get("/api/v1/runs").json["runs"]] == ["r"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_all_its_children(live_server, number):
    children = children_of(live_server)
    assert len(children) >= 2
    live_server.process.send_signal(number)
    assert live_server.process.wait(20) == 0
    wait_for(
        lambda: (
            not any(
                child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children
            )
        )
    )
    assert "Traceback" not in live_server.errors


def test_children_of_a_killed_parent_exit_and_free_the_port(live_server):
    children = children_of(live_server)
    os.kill(live_server.process.pid, signal.SIGKILL)
    wait_for(
        lambda: (
            not any(
                child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children
            )
        )
    )
    port = int(live_server.url.rpartition(":")[2])
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))


def test_a_server_with_a_parent_exits_with_it(tmp_path):
    """Like the demo's server, which must not survive a killed demo."""
    code = (
        "import os, subprocess, sys; "
        "serve = [sys.executable, '-m', 'memagent', 'serve', '--role', 'web', '--listen', '127.0.0.1:0']; "
        "subprocess.run([*serve, '--parent', str(os.getpid())])"
    )
    environ = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert "listening on" in owner.stdout.readline()
        family = psutil.Process(owner.pid).children(recursive=True)
        owner.kill()
        wait_for(
            lambda: (
                not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in family)
            )
        )


def test_the_next_server_removes_the_folder_of_one_that_was_killed(live_server, start_server):
    (left,) = live_server.data.glob("memagent-counts-*")
    live_server.kill()
    assert left.exists()
    start_server("--role", "web")
    (result,) = live_server.data.glob("memagent-counts-*")
    assert result != left and list(result.glob("*.db")), "its own, which is in use"


def test_a_dead_worker_is_restarted(live_server):
    wait_for(lambda: len(pids_of(live_server, WORKER)) == 1)
    (first,) = pids_of(live_server, WORKER)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: set(pids_of(live_server, WORKER)) - {first})
    assert "restarting in" in live_server.errors


def test_a_dead_web_process_is_restarted(start_server):
    server = start_server("--role", "web")
    (first,) = pids_of(server, WEB)
    os.kill(first, signal.SIGKILL)

    def answers():
        with contextlib.suppress(urllib3.exceptions.HTTPError):
            return server.get("/healthz").status == 200

    wait_for(lambda: set(pids_of(server, WEB)) - {first} and answers())
    assert "Unexpected exit from worker-1" in server.errors


def test_a_role_serves_its_part_only(start_server):
    server = start_server("--role", "web", "--workers", "2")
    assert (len(pids_of(server, WEB)), len(pids_of(server, WORKER))) == (2, 0)
    assert {server.get("/healthz").status for _ in range(10)} == {200}
    wanted = 'memagent_http_requests_total{method="GET",route="/healthz",status="200"}'
    (line,) = [
        line
        for line in server.get("/metrics").body.decode().splitlines()
        if line.startswith(wanted)
    ]
    assert float(line.split()[-1]) >= 10, (
        "whichever process is scraped, it knows what the other one counted"
    )


@pytest.mark.parametrize("serve", ["granian", "gunicorn"])
def test_requests_accepted_before_a_stop_are_answered_and_stored(
    serve, start_server, start_gunicorn, sqlite_lock
):
    server = start_server("--role", "web") if serve == "granian" else start_gunicorn()
    patient = partial(urllib3.request, timeout=30.0, retries=False)
    server.post("/api/v1/runs", {"run_id": "r"})
    with ThreadPoolExecutor(6) as pool, sqlite_lock(server):
        posted = [
            pool.submit(
                patient,
                "POST",
                f"{server.url}/api/v1/runs/r/batches",
                json={"seq": 0, "rank": rank},
            )
            for rank in range(6)
        ]
        wait_for(lambda: all(future.running() for future in posted))
        time.sleep(0.5)  # the requests wait for the lock inside the server
        server.process.terminate()
        time.sleep(0.5)
        assert not any(future.done() for future in posted)
    assert [future.result().status for future in posted] == [200] * 6
    assert server.process.wait(20) == 0
    with contextlib.closing(sqlite3.connect(server.data / "memagent.db")) as database:
        assert database.execute("SELECT count(*) FROM batches").fetchone() == (6,)


def test_the_json_log_has_the_request_id(start_server):
    server = start_server("--role", "web", environ={"MEMAGENT_LOG_FORMAT": "json"})
    server.get("/api/v1/runs/none", x_request_id="the-one")
    lines = [json.loads(line) for line in server.errors.splitlines()]
    (line,) = [line for line in lines if line["logger"] == "memagent.access"]
    assert (line["message"], line["status"], line["request_id"]) == (
        "GET /api/v1/runs/none",
        404,
        "the-one",
    )


@pytest.mark.parametrize(("name", "value"), [("FORMAT", "xml"), ("LEVEL", "loud")])
def test_an_unknown_log_format_is_bad_usage(memagent, name, value):
    done = memagent("serve", environ={f"MEMAGENT_LOG_{name}": value})
    assert (done.returncode, done.stderr.count("\n")) == (
        2,
        1,
    ) and f"MEMAGENT_LOG_{name}" in done.stderr


def test_a_port_in_use_is_one_clear_line(start_server, memagent):
    address = start_server("--role", "web").url.removeprefix("http://")
    done = memagent("serve", "--listen", address)
    assert done.returncode == 1
    assert (
        done.stderr
        == f"memagent: cannot listen on {address}: the port is in use; choose another address with --listen HOST:PORT\n"
    )


@pytest.mark.parametrize("listen", ["nonsense", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:x"])
def test_an_invalid_address_is_bad_usage(memagent, listen):
    done = memagent("serve", "--listen", listen)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "MEMAGENT_LISTEN" in done.stderr


def test_without_tokens_it_refuses_to_listen_beyond_loopback(memagent):
    done = memagent("serve", "--listen", "0.0.0.0:0")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "memagent token create" in done.stderr


def test_with_a_token_it_listens_anywhere_and_requires_it(start_server, memagent):
    token = memagent("token", "create", "ana", "--scope", "read").stdout.strip()
    server = start_server("--role", "web", listen="0.0.0.0:0")
    assert server.get("/api/v1/runs").status == 401
    assert server.get("/api/v1/runs", authorization=f"Bearer {token}").status == 200


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


def test_an_unread_body_keeps_the_connection(start_server):
    host, port = start_server("--role", "web").url.removeprefix("http://").split(":")
    head = (
        "POST /api/v1/channels/none/test HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n"
    )
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
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
