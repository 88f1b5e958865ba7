"""Tables shared by processes: each key has one row, and a crash does no harm."""

from __future__ import annotations

import http.client
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import psutil
import pytest

from memagent_server.http.credentials import issue_token
from memagent_server.http.login_throttle import MAX_FAILURES
from memagent_server.http.shared_counters import SETS, WAYS, SharedCounters, open_counters
from memagent_server.observability.self_metrics import FOLDER
from memagent_server.settings import Settings
from memagent_server.store.engine import Database
from tests.live_server import SECRET_KEY

COUNT = """
import sys
from memagent_server.http.shared_counters import SharedCounters
counters = SharedCounters("test", 2, "secret", sys.argv[1])
for _ in range(2_000):
    with counters.row("key") as row:
        row[0] += 1.0
"""


def read(counters, key):
    with counters.row(key) as row:
        return list(row)


def add(counters, key):
    with counters.row(key) as row:
        row[0] += 1.0


def test_processes_and_threads_count_together(tmp_path):
    counters = SharedCounters("test", 2, "secret", str(tmp_path))
    other = subprocess.Popen([sys.executable, "-c", COUNT, str(tmp_path)])
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: add(counters, "key"), range(2_000)))
    assert other.wait() == 0
    assert read(counters, "key") == [4_000.0, 0.0]
    assert read(SharedCounters("test", 2, "secret", str(tmp_path)), "key") == [4_000.0, 0.0]


def test_the_least_recently_used_rows_are_replaced():
    counters = SharedCounters("test", 1, "secret")
    keys = [f"key {number}" for number in range(2 * SETS * WAYS)]
    for key in keys:
        add(counters, key)
    assert read(counters, keys[-1]) == [1.0]
    assert read(counters, keys[0]) == [0.0], "forgotten"


def test_the_file_reveals_no_key(tmp_path):
    add(SharedCounters("test", 1, "secret", str(tmp_path)), "mag_a-token")
    (file,) = tmp_path.iterdir()
    assert b"mag_a" not in file.read_bytes() and file.stat().st_mode & 0o077 == 0
    assert read(SharedCounters("test", 1, "another", str(tmp_path)), "mag_a-token") == [0.0]


def test_without_a_folder_a_process_counts_alone(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv(FOLDER, str(tmp_path / "gone"))
    counters = open_counters("test", 1, "secret")
    add(counters, "key")
    assert read(counters, "key") == [1.0] and "counts alone" in caplog.text


@pytest.fixture
def of_two_processes(start_server):
    """A server with two web processes, a token, and an open connection to each:

    (token, one, other).
    """
    server = start_server(
        "--role", "web", "--workers", "2", environ={"MEMAGENT_QUOTA_REQUESTS": "0.2"}
    )
    database = Database(server.database_url)
    settings = Settings(database_url=server.database_url, secret_key=SECRET_KEY)
    with database.write() as session:
        token, _ = issue_token(session, settings, name="ci", scope="read", now=1.0)
    database.close()
    results: dict[int, http.client.HTTPConnection] = {}
    connections = []
    for _ in range(200):
        connections.append(http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30))
        ask(connections[-1], "/healthz")
        results.setdefault(process_of(server, connections[-1]), connections[-1])
        if len(results) == 2:
            break
    yield token, *results.values()
    for connection in connections:
        connection.close()


def ask(connection, path="/api/v1/runs", token=None):
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
    response = connection.getresponse()
    response.read()
    return response.status


def process_of(server, connection):
    """The web process at the other end of a connection."""
    port = connection.sock.getsockname()[1]
    for child in psutil.Process(server.process.pid).children(recursive=True):
        if any(end.raddr and end.raddr.port == port for end in child.net_connections("tcp")):
            return child.pid
    raise AssertionError("nobody holds the connection")


def test_web_processes_share_the_quota_of_a_token(of_two_processes):
    token, one, other = of_two_processes
    while ask(one, token=token) == 200:
        pass
    assert ask(other, token=token) == 429


def test_an_address_blocked_by_one_web_process_is_blocked_by_all(of_two_processes):
    token, one, other = of_two_processes
    assert ask(one, token=token) == 200
    assert {ask(one, token=f"guess {number}") for number in range(MAX_FAILURES)} == {401}
    assert ask(other, token="guess") == 429
    assert ask(other, token=token) == 200, "it was right, there as well"
