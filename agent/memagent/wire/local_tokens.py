"""Tokens of a server on loopback, in a file that agents and verbs of its user find by themselves.

1. The server writes one file per host name and port: clusters share home folders.
2. The file is used only if it is a regular file of the own user and closed to all others, and only
   for the address that it names. `localhost` may mean any loopback address.
3. Another process may take the port once the server is gone, or the other address of `localhost`.
   Before the token is sent, the far end of the connection must be a process of the own user: on
   Linux the kernel tells. Such a process could read the file anyway.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from memagent.errors import DeliveryError
from memagent.wire.codec import prepare

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
Scope = Literal["ingest", "read"]
_MAX_BYTES = 10_000
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = "0A"
_MAPPED = bytes(10) + b"\xff\xff"
"""Begins an IPv6 address that stands for one of IPv4."""
_ANY = (bytes(4), bytes(16))


@dataclass(frozen=True)
class LocalTokens:
    """The address of a server, and its tokens for agents and for verbs that read."""

    url: str
    ingest: str = field(repr=False)
    read: str = field(repr=False)


prepare(LocalTokens)


def find_token(server: str, scope: Scope, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the token for a server on this machine. Raises DeliveryError for an unsafe file."""
    address = _address(server)
    path = path_of(address[1], environ) if address is not None else None
    tokens = load(path) if path is not None else None
    if address is None or tokens is None:
        return None
    hosts = {address[0], (_address(tokens.url) or address)[0]}
    if len(hosts) > 1 and "localhost" not in hosts:
        return None
    return tokens.ingest if scope == "ingest" else tokens.read


def path_of(port: int, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file for a port of this host, None for a user without a home."""
    try:
        base = environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    except RuntimeError:
        return None
    name = f"local_token_{quote(socket.gethostname(), safe='')}_{port}.json"
    return Path(base) / "memagent" / name


def load(path: Path) -> LocalTokens | None:
    """Return the content of a file, None if there is none. Raises DeliveryError."""
    try:
        # a link isn't followed, and a pipe isn't waited for
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unusable(path, f"cannot be opened ({error.strerror})") from error
    try:
        _check(path, os.fstat(descriptor))
        content = os.read(descriptor, _MAX_BYTES)
    finally:
        os.close(descriptor)
    try:
        return msgspec.json.decode(content, type=LocalTokens)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _unusable(path, "is damaged") from error


def _check(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _unusable(path, "isn't a regular file")
    if status.st_uid != os.geteuid():
        raise _unusable(path, f"belongs to another user (uid {status.st_uid})")
    if status.st_mode & 0o077:
        raise _unusable(path, f"is open to others (mode {stat.S_IMODE(status.st_mode):04o})")


def store(path: Path, tokens: LocalTokens) -> None:
    """Write the file, or replace whatever has its name. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(tokens))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


class _Socket(NamedTuple):
    """A row of the kernel's table of TCP sockets, with addresses as bytes."""

    near: tuple[bytes, int]
    far: tuple[bytes, int]
    is_listening: bool
    uid: int
    is_accepted: bool


def check_peer(connection: socket.socket) -> None:
    """Raise DeliveryError if the far end of a connection on this machine is another user's.

    Before it is accepted, a connection counts as that of the socket that listens. A system that
    doesn't say isn't checked.
    """
    sockets = list(_sockets())
    near, far = _endpoint(connection.getsockname()), _endpoint(connection.getpeername())
    users = {
        item.uid for item in sockets if item.is_accepted and (item.near, item.far) == (far, near)
    } or {
        item.uid
        for item in sockets
        if item.is_listening and item.near[1] == far[1] and item.near[0] in (far[0], *_ANY)
    }
    if sockets and users != {os.geteuid()}:
        host, port = connection.getpeername()[:2]
        raise DeliveryError(
            f"What answers at {host}:{port} belongs to another user, so it isn't sent the token of "
            "your server: start `memagent serve` at another port, or set MEMAGENT_TOKEN."
        )


def _sockets() -> Iterator[_Socket]:
    for path in _TABLES:
        with suppress(OSError):
            for line in path.read_text().splitlines()[1:]:
                _, near, far, state, _, _, _, uid, _, inode, *_ = line.split()
                is_listening = state == _LISTENING
                is_accepted = not is_listening and inode != "0"
                yield _Socket(_decoded(near), _decoded(far), is_listening, int(uid), is_accepted)


def _decoded(text: str) -> tuple[bytes, int]:
    """Return an address of the table, whose words have the order of the machine's bytes."""
    host, _, port = text.partition(":")
    words = [bytes.fromhex(host[first : first + 8]) for first in range(0, len(host), 8)]
    step = -1 if sys.byteorder == "little" else 1
    return b"".join(word[::step] for word in words).removeprefix(_MAPPED), int(port, 16)


def _endpoint(address: tuple[str, int]) -> tuple[bytes, int]:
    host, port = address[:2]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.inet_pton(family, host).removeprefix(_MAPPED), port


def _address(server: str) -> tuple[str, int] | None:
    """Return host and port of a server on loopback, None for any other address."""
    try:
        parts = urlsplit(server)
        port = parts.port or 80
    except ValueError:
        return None
    # a path is a proxy's: behind it may be any server
    is_direct = parts.scheme == "http" and parts.path in ("", "/")
    host = parts.hostname
    return (host, port) if is_direct and host in LOOPBACK_HOSTS and host else None


def _unusable(path: Path, reason: str) -> DeliveryError:
    return DeliveryError(
        f"The token in {path} is not used: the file {reason}. Delete it and restart "
        "`memagent serve`, or set MEMAGENT_TOKEN."
    )
