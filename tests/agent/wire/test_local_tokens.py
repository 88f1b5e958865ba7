"""The file with the tokens of a server on this machine: who may read it, and for which address."""

from __future__ import annotations

import os
import stat
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
