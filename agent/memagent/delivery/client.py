"""Questions to a server, asked once and answered within seconds: for the command line, not for training runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from memagent import __version__
from memagent.errors import DeliveryError

TIMEOUT_S = 5.0

_REASONS = {
    "NameResolutionError": "its host name is not known: check the spelling, the DNS and the VPN",
    "SSLError": "TLS failed: check the certificate, and whether it is http:// or https://",
    "ReadTimeoutError": "it took the connection and did not answer in time: a proxy, or a server that is stuck",
    "NewConnectionError": "the connection was refused: start `memagent serve` there, or check host and port",
    "ConnectTimeoutError": "it did not answer in time: a firewall, or the wrong address",
    "ProtocolError": "it hung up: check the port, and whether it is http:// or https://",
}
"""By the name of urllib3's error; where an error is several of these, the first counts."""


@dataclass(frozen=True)
class Response:
    """What the server said, header names in lower case. `began_at` and `ended_at` are Unix seconds by this machine's clock."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    began_at: float
    ended_at: float

    def fields(self) -> dict[str, Any]:
        """The answer as a JSON object; empty where it is none."""
        try:
            return msgspec.json.decode(self.body, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return {}


def ask(
    server: str,
    path: str,
    *,
    token: str | None = None,
    method: str = "GET",
    timeout_s: float = TIMEOUT_S,
) -> Response:
    """Ask `server` for `path`; redirects are not followed. Raises DeliveryError, which says what to do, where nobody answers."""
    import urllib3

    headers = {"Accept": "application/json", "User-Agent": f"memagent/{__version__}"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    pool = urllib3.PoolManager(retries=False)
    began_at = time.time()
    try:
        response = pool.request(
            method, server + path, headers=headers, timeout=timeout_s, redirect=False
        )
        return Response(
            response.status,
            {name.lower(): text for name, text in response.headers.items()},
            response.data,
            began_at,
            time.time(),
        )
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise DeliveryError(f"{server} cannot be reached: {reason_of(error)}") from error
    finally:
        pool.clear()


def reason_of(error: BaseException) -> str:
    """What is wrong with a connection, and what to do."""
    names = {
        kind.__name__
        for found in (error, error.__cause__)
        if found is not None
        for kind in type(found).__mro__
    }
    return next(
        (reason for name, reason in _REASONS.items() if name in names),
        str(error) or type(error).__name__,
    )
