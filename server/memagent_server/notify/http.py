"""One POST to somewhere else, for all channels that speak HTTP.

1. The host is resolved once, its addresses are checked, and the connection goes to the address that was checked: a name that
   resolves to something else a moment later leads nowhere.
2. Loopback and link-local addresses (a cloud's metadata service is one) are refused unless a setting allows them.
3. Redirects are not followed, and at most MOST_BYTES of an answer are read.
4. A proxy of the environment (HTTPS_PROXY, NO_PROXY) is used as usual; the host is checked all the same, as far as it resolves here.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import ssl
import urllib.request
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import urllib3

from memagent_server.notify.channel import DeliveryFailedError, retry_after_s

TIMEOUT_S = 10.0
MOST_BYTES = 65_536

logging.getLogger("urllib3.connectionpool").setLevel(
    logging.INFO
)  # at DEBUG it writes paths, and those of webhooks are secret


@dataclass(frozen=True)
class Reply:
    """A success: status 2xx and the beginning of the body."""

    status: int
    text: str


def post(
    url: str,
    body: bytes,
    *,
    who: str,
    headers: Mapping[str, str] | None = None,
    allow_local: bool = True,
    final: Collection[int] = (),
    show_answer: bool = True,
    method: str = "POST",
) -> Reply:
    """POST JSON, or send it by another method. `who` is what errors call the far end; they never show its address. A status in `final`
    makes trying again senseless.

    Raises DeliveryFailedError for anything but 2xx.
    """
    sent = {"Content-Type": "application/json", "User-Agent": "memagent", **(headers or {})}
    try:
        status, answer_headers, text = _exchange(method, url, body, sent, allow_local, who)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise DeliveryFailedError(f"{who} could not be reached: {_kind(error)}") from None
    if 200 <= status < 300:
        return Reply(status, text)
    answer = f": {' '.join(text.split())[:200]}" if show_answer and text.strip() else ""
    raise DeliveryFailedError(
        f"{who} answered {status}{answer}",
        retry_after_s=retry_after_s(answer_headers),
        is_final=status in final,
    )


def is_local(address: str) -> bool:
    """Whether an IP address is loopback, link-local, unspecified or multicast, also when written as IPv6."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return found.is_loopback or found.is_link_local or found.is_unspecified or found.is_multicast


def _exchange(
    method: str, url: str, body: bytes, headers: Mapping[str, str], allow_local: bool, who: str
) -> tuple[int, Mapping[str, str], str]:
    """Status, headers and the beginning of the body of the answer."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    proxy = _proxy(parts.scheme, host)
    addresses = _resolve(host, port, who, needed=proxy is None)
    if not allow_local and any(map(is_local, addresses)):
        raise DeliveryFailedError(
            f"{who} is at a loopback or link-local address; MEMAGENT_ALLOW_LOCAL_WEBHOOKS=1 allows those"
        )
    pool: Any
    if proxy is not None:
        pool, target = urllib3.ProxyManager(proxy), url
    else:
        pool, target = _pool(parts, addresses[0], host, port), _target(parts)
    if parts.username:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers = {**urllib3.make_headers(basic_auth=credentials), **headers}
    with pool:
        response = pool.urlopen(
            method,
            target,
            body=body,
            headers={**headers, "Host": parts.netloc.rpartition("@")[2]},
            timeout=TIMEOUT_S,
            redirect=False,
            retries=False,
            preload_content=False,
        )
        try:
            return response.status, response.headers, response.read(MOST_BYTES).decode("utf-8", "replace")
        finally:
            response.close()


def _pool(parts: SplitResult, address: str, host: str, port: int) -> urllib3.HTTPConnectionPool:
    """To the address that was checked; the certificate must be the host's all the same."""
    if parts.scheme == "https":
        context = ssl.create_default_context()
        return urllib3.HTTPSConnectionPool(
            address, port, server_hostname=host, assert_hostname=host, ssl_context=context
        )
    return urllib3.HTTPConnectionPool(address, port)


def _target(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _resolve(host: str, port: int, who: str, *, needed: bool) -> list[str]:
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError) as error:
        if needed:
            raise DeliveryFailedError(f"{who} could not be reached: its host's name does not resolve") from error
        return []


def _proxy(scheme: str, host: str) -> str | None:
    proxy = urllib.request.getproxies().get(scheme)
    return None if proxy is None or urllib.request.proxy_bypass(host) else proxy


def _kind(error: Exception) -> str:
    """What kind of trouble it is; the words of urllib3's errors hold addresses."""
    return {
        "NewConnectionError": "nobody answers there",
        "ConnectTimeoutError": f"no connection within {TIMEOUT_S:.0f} s",
        "ReadTimeoutError": f"no answer within {TIMEOUT_S:.0f} s",
        "SSLError": "its certificate is not accepted",
    }.get(type(error).__name__, type(error).__name__)
