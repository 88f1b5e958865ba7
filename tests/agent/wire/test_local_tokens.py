"""The file with the tokens of a server on this machine: who may read it, and for which address."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from contextlib import closing
from types import SimpleNamespace

import pytest

from memagent.delivery.api_client import ApiClient
from memagent.errors import DeliveryError
from memagent.wire import local_tokens
from memagent.wire.local_tokens import LocalTokens, find_token
from tests.scripted_server import ScriptedServer, read_request, response

TOKENS = LocalTokens("http://127.0.0.1:8420", "mag_ingest", "mag_read")


@pytest.fixture
def environ(tmp_path):
    return {"XDG_DATA_HOME": str(tmp_path)}


@pytest.fixture
def file(environ):
    """A file as a server on port 8420 writes it."""
    path = local_tokens.path_of(8420, environ)
    local_tokens.store(path, TOKENS)
    return path


def test_only_its_owner_may_read_it_and_no_repr_shows_it(file):
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]
    assert "mag_" not in repr(local_tokens.load(file))


@pytest.mark.parametrize(
    ("server", "token"),
    [
        ("http://127.0.0.1:8420", "mag_ingest"),
        ("http://localhost:8420", "mag_ingest"),
        ("http://[::1]:8420", None),
        ("http://127.0.0.1:8421", None),
        ("http://127.0.0.1", None),
        ("https://127.0.0.1:8420", None),
        ("http://127.0.0.1:8420/behind/a/proxy", None),
        ("http://10.0.0.7:8420", None),
        ("http://localhost.example:8420", None),
        ("http://127.0.0.1:84200", None),
    ],
)
def test_it_is_for_its_own_address_only(file, environ, server, token):
    assert find_token(server, "ingest", environ) == token


def test_readers_get_another_token_than_agents(file, environ):
    assert find_token(TOKENS.url, "read", environ) == "mag_read"


def test_without_a_file_or_a_home_there_is_no_token(environ, monkeypatch):
    assert find_token(TOKENS.url, "read", environ) is None
    monkeypatch.setattr(local_tokens.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError()))
    assert find_token(TOKENS.url, "read", {}) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660])
def test_a_file_that_others_may_open_is_refused(file, environ, mode):
    file.chmod(mode)
    with pytest.raises(DeliveryError, match=f"open to others .mode {mode:04o}.* Delete it"):
        find_token(TOKENS.url, "ingest", environ)


def test_a_file_of_another_user_is_refused(file, environ, monkeypatch):
    owner = file.stat().st_uid
    if os.geteuid() == 0:
        os.chown(file, 65534, -1)
        owner = 65534
    else:
        monkeypatch.setattr(local_tokens, "os", SimpleNamespace(**{**vars(os), "geteuid": lambda: owner + 1}))  # fmt: skip
    with pytest.raises(DeliveryError, match=f"belongs to another user .uid {owner}"):
        find_token(TOKENS.url, "ingest", environ)


def test_links_pipes_folders_and_damaged_files_are_refused(file, environ, tmp_path):
    target = file.rename(tmp_path / "target")
    for make in (
        lambda: file.symlink_to(target),
        lambda: os.mkfifo(file, 0o600),
        lambda: file.mkdir(mode=0o700),
        lambda: (file.touch(0o600), file.write_text("{}")),
    ):
        make()
        with pytest.raises(DeliveryError, match=r"local_token_.*is not used"):
            find_token(TOKENS.url, "ingest", environ)
        file.rmdir() if file.is_dir() else file.unlink()


def test_a_token_of_the_settings_wins_and_a_replaced_one_is_found(environ, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", environ["XDG_DATA_HOME"])
    heads = []

    def script(connection):
        heads.append(read_request(connection))
        connection.sendall(response(b"{}"))

    server = ScriptedServer(script)
    path = local_tokens.path_of(int(server.url.rpartition(":")[2]))
    clients = [ApiClient(server.url, "mag_own"), ApiClient(server.url)]
    try:
        for number in (1, 2):
            local_tokens.store(path, LocalTokens(server.url, "mag_ingest", f"mag_read{number}"))
            for client in clients:
                client.request("/")
    finally:
        for item in (*clients, server):
            item.close()
    sent = [line for head in heads for line in head.split(b"\r\n") if b"mag_" in line]
    tokens = [line.partition(b"mag_")[2] for line in sent]
    assert tokens == [b"own", b"read1", b"own", b"read2"]


SQUATTER = """
import os, socket, sys
os.setgid(65534)
os.setuid(65534)
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
is_late = sys.argv[1] == "late"
if is_late:
    sys.stdin.readline()
for _ in range(2):
    connection, _ = listening.accept()
    print(connection.recv(65536), flush=True)
if not is_late:
    sys.stdin.readline()
"""


@pytest.fixture(params=["at once", "late"])
def squatter(request):
    """A process of another user that listens, accepts at once or late, and ends after a line."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with subprocess.Popen(
        [sys.executable, "-c", SQUATTER, request.param],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def test_a_process_of_another_user_at_the_servers_port_gets_no_token(
    squatter, environ, monkeypatch
):
    monkeypatch.setenv("XDG_DATA_HOME", environ["XDG_DATA_HOME"])
    port = int(squatter.stdout.readline())
    url = f"http://127.0.0.1:{port}"
    local_tokens.store(local_tokens.path_of(port), LocalTokens(url, "mag_ingest", "mag_read"))
    for server in (url, f"http://localhost:{port}"):
        with (
            closing(ApiClient(server)) as client,
            pytest.raises(DeliveryError, match=f":{port} belongs to another user.*isn't sent"),
        ):
            client.request("/")
    squatter.stdin.write("\n")
    squatter.stdin.flush()
    assert squatter.stdout.read() == "b''\nb''\n"


ROW = "   0: {} {} {} 00000000:00000000 00:00000000 00000000 {} 0 {} 1 0 20 4 0 10 -1\n"
NEAR, FAR = "0100007F:C000", "0100007F:20E4"
NEAR6, FAR6 = (f"0000000000000000FFFF0000{place}" for place in (NEAR, FAR))
NOBODY = "00000000:0000"


@pytest.mark.parametrize(
    ("rows", "is_own"),
    [
        ([(FAR, NEAR, "01", "own", 7)], True),
        ([(FAR, NEAR, "01", "other", 7)], False),
        ([(FAR6, NEAR6, "01", "other", 7)], False),
        # not accepted yet: the kernel says 0, whoever listens
        ([(FAR, NEAR, "01", 0, 0), (FAR, NOBODY, "0A", "own", 6)], True),
        ([(FAR, NEAR, "01", 0, 0), (FAR, NOBODY, "0A", "other", 6)], False),
        ([(FAR, NEAR, "01", 0, 0), ("00000000:20E4", NOBODY, "0A", "own", 6)], True),
        ([(FAR, NEAR, "01", 0, 0), (f"{'0' * 32}:20E4", NOBODY, "0A", "other", 6)], False),
        ([(FAR, NEAR, "01", 0, 0), ("0100007F:20E5", NOBODY, "0A", "own", 6)], False),
        # accepted by a process that has left the port to another one meanwhile
        ([(FAR, NEAR, "01", "other", 7), (FAR, NOBODY, "0A", "own", 6)], False),
        ([(NEAR, FAR, "01", "own", 5)], False),
        ([], True),
    ],
)
@pytest.mark.skipif(sys.byteorder != "little", reason="the rows are those of such a machine")
def test_the_far_end_of_a_connection_must_be_of_the_own_user(tmp_path, monkeypatch, rows, is_own):
    users = {"own": os.geteuid(), "other": os.geteuid() + 1}
    table = tmp_path / "tcp"
    if rows:
        lines = [ROW.format(*row[:3], users.get(row[3], row[3]), row[4]) for row in rows]
        table.write_text("  sl  local_address ...\n" + "".join(lines))
    monkeypatch.setattr(local_tokens, "_TABLES", (table, tmp_path / "none"))
    connection = SimpleNamespace(
        getsockname=lambda: ("127.0.0.1", 0xC000), getpeername=lambda: ("127.0.0.1", 8420)
    )
    if is_own:
        local_tokens.check_peer(connection)
    else:
        with pytest.raises(DeliveryError, match=":8420 belongs to another user"):
            local_tokens.check_peer(connection)


def test_both_ends_of_a_real_connection_are_found():
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            listening = socket.create_server((host, 0), family=family)
        except OSError:  # a machine without IPv6
            continue
        with listening, socket.create_connection(listening.getsockname()[:2]) as connection:
            local_tokens.check_peer(connection)
            accepted, _ = listening.accept()
            with accepted:
                local_tokens.check_peer(connection)
