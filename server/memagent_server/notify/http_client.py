"""One POST to somewhere else, for all channels that speak HTTP.

1. The host is resolved once, its addresses are checked, and the connection goes to the address that was checked: a name that
   resolves to something else a moment later leads nowhere.
2. Loopback and link-local addresses and those of clouds' metadata services are refused unless a setting allows them, in whatever
   notation, and also where an IPv6 address only wraps one.
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

_NOBODYS_OR_METADATA = tuple(
    map(
        ipaddress.ip_network,
        (
            "0.0.0.0/8",
            "255.255.255.255/32",
            "100.100.100.200/32",  # Alibaba
            "168.63.129.16/32",  # Azure
            "192.0.0.192/32",  # Oracle
            "fd00:ec2::254/128",  # AWS; everybody else's is link-local
        ),
    )
)
_IPV4_AT_THE_END = tuple(map(ipaddress.ip_network, ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96")))

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
    allow_local: bool = False,
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
    """Whether an IP address is this machine's, its link's, nobody's in particular, or gives a cloud's secrets away; IPv4 in IPv6, too."""
    found = ipaddress.ip_address(address.partition("%")[0])
    wrapped = _ipv4_within(found) if isinstance(found, ipaddress.IPv6Address) else None
    return _is_local(found) or (wrapped is not None and _is_local(wrapped))


def _is_local(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    is_special = (
        address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address.is_multicast
    )
    return is_special or any(
        address in network for network in _NOBODYS_OR_METADATA if network.version == address.version
    )


def _ipv4_within(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that a mapped, compatible, translated (NAT64), 6to4 or Teredo address leads to."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    is_tail = any(address in network for network in _IPV4_AT_THE_END)
    return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF) if is_tail else None


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
            return (
                response.status,
                response.headers,
                response.read(MOST_BYTES).decode("utf-8", "replace"),
            )
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
        return [
            str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        ]
    except (OSError, UnicodeError) as error:
        if needed:
            raise DeliveryFailedError(
                f"{who} could not be reached: its host's name does not resolve"
            ) from error
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
