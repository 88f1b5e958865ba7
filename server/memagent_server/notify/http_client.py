"""HTTP requests of all channels that send JSON.

1. The host is resolved once, its addresses are checked, and the connection goes to the checked
   address. A name that resolves to another address a moment later can't redirect the request.
2. Loopback and link-local addresses and the metadata services of clouds are refused, unless a
   setting allows them: in any notation, and also if an IPv6 address wraps one.
3. Redirects aren't followed, and at most MAX_RESPONSE_BYTES of a response are read.
4. The whole exchange takes at most EXCHANGE_TIMEOUT_S: a service that sends a byte a second doesn't
   hold its channel. After a complete head, the status is the answer.
5. A proxy of the environment (HTTPS_PROXY, NO_PROXY) is used as usual. The host is checked all the
   same, as far as it resolves here.
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

import msgspec
import urllib3

from memagent.wire.bounded_http import HttpPool, HttpsPool, pool_manager, read_start
from memagent.wire.deadline import Deadline
from memagent_server.notify.channel import (
    AlertMessage,
    Channel,
    DeliveryFailedError,
    Receipt,
    retry_after_s,
    secret_parts,
)
from memagent_server.schemas.base import JsonObject

TIMEOUT_S = 10.0
"""Silence after which a service hangs."""
EXCHANGE_TIMEOUT_S = 30.0
MAX_RESPONSE_BYTES = 65_536
MAX_ERROR_CHARACTERS = 200

_UNROUTABLE_OR_METADATA = tuple(
    map(
        ipaddress.ip_network,
        (
            "0.0.0.0/8",
            "255.255.255.255/32",
            "100.100.100.200/32",  # Alibaba
            "168.63.129.16/32",  # Azure
            "192.0.0.192/32",  # Oracle
            "fd00:ec2::254/128",  # AWS; the other clouds use link-local addresses
        ),
    )
)
_IPV4_SUFFIX_NETWORKS = tuple(
    map(ipaddress.ip_network, ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96"))
)

# At DEBUG level urllib3 logs paths, and those of webhooks are secret.
logging.getLogger("urllib3.connectionpool").setLevel(logging.INFO)


@dataclass(frozen=True)
class Response:
    """Status, headers and the start of the body."""

    status: int
    headers: Mapping[str, str]
    text: str


class WebhookChannel(Channel):
    """Channel that posts JSON to a secret address, which appears in no error or log."""

    service: str
    """Name of the service in errors."""
    final_statuses: tuple[int, ...] = ()
    """Statuses after which retrying is pointless."""

    def __init__(self, url: str, *, allow_local: bool = False) -> None:
        self._url = url
        self._allow_local = allow_local
        self.secrets = secret_parts(url)

    def payload(self, message: AlertMessage) -> JsonObject:
        """Return the JSON to post."""
        raise NotImplementedError

    def send(self, message: AlertMessage) -> Receipt:
        response = send_json(
            self._url,
            msgspec.json.encode(self.payload(message)),
            service=self.service,
            allow_local=self._allow_local,
            final_statuses=self.final_statuses,
        )
        return {"status": response.status}


def send_json(
    url: str,
    body: bytes,
    *,
    service: str,
    headers: Mapping[str, str] | None = None,
    allow_local: bool = False,
    final_statuses: Collection[int] = (),
    show_response: bool = True,
    method: str = "POST",
) -> Response:
    """Send JSON and return a 2xx response; raise DeliveryFailedError for any other.

    Errors name the `service` and never show its address. A status in `final_statuses` makes
    retrying pointless.
    """
    all_headers = {"Content-Type": "application/json", "User-Agent": "memagent", **(headers or {})}
    response = exchange(method, url, body, all_headers, allow_local=allow_local, service=service)
    if 200 <= response.status < 300:
        return response
    excerpt = " ".join(response.text.split())[:MAX_ERROR_CHARACTERS] if show_response else ""
    raise DeliveryFailedError(
        f"{service} answered {response.status}" + (f": {excerpt}" if excerpt else ""),
        retry_after_s=retry_after_s(response.headers),
        is_final=response.status in final_statuses,
    )


def exchange(
    method: str,
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    service: str,
    allow_local: bool = False,
    max_bytes: int = MAX_RESPONSE_BYTES,
    timeout_s: float | None = None,
) -> Response:
    """Send a request and return the response, whatever its status.

    `timeout_s` is EXCHANGE_TIMEOUT_S by default. Raises DeliveryFailedError if there is none.
    """
    timeout_s = timeout_s or EXCHANGE_TIMEOUT_S
    deadline = Deadline(timeout_s)
    try:
        with deadline:
            return _exchange(method, url, body, headers, allow_local, service, max_bytes)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        too_late = f"no complete answer within {timeout_s:.0f} s"
        reason = too_late if deadline.is_over else _reason(error)
        # from None: the cause's message has the secret address
        raise DeliveryFailedError(f"{service} could not be reached: {reason}") from None


def is_local(address: str) -> bool:
    """Return True for a loopback, link-local or unroutable address, or a cloud's metadata service.

    An IPv6 address that wraps such an IPv4 address counts, too.
    """
    # after %, the zone of a link-local address
    parsed = ipaddress.ip_address(address.partition("%")[0])
    wrapped = _ipv4_within(parsed) if isinstance(parsed, ipaddress.IPv6Address) else None
    return _is_local(parsed) or (wrapped is not None and _is_local(wrapped))


def _is_local(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    is_special = (
        address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address.is_multicast
    )
    return is_special or any(
        address in network
        for network in _UNROUTABLE_OR_METADATA
        if network.version == address.version
    )


def _ipv4_within(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address in a mapped, compatible, NAT64, 6to4 or Teredo address."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    is_suffix = any(address in network for network in _IPV4_SUFFIX_NETWORKS)
    return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF) if is_suffix else None


def _exchange(
    method: str,
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    allow_local: bool,
    service: str,
    max_bytes: int,
) -> Response:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    proxy = _proxy(parts.scheme, host)
    addresses = _resolve(host, port, service, is_required=proxy is None)
    if not allow_local and any(map(is_local, addresses)):
        raise DeliveryFailedError(
            f"{service} is at a loopback or link-local address; "
            "MEMAGENT_ALLOW_LOCAL_WEBHOOKS=1 allows those"
        )
    pool: Any
    if proxy is not None:
        # the proxy resolves the name itself, so the address cannot be fixed here
        pool, target = pool_manager(proxy), url
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
            # the pool only knows the address, not the name
            headers={**headers, "Host": parts.netloc.rpartition("@")[2]},
            timeout=TIMEOUT_S,
            redirect=False,
            retries=False,
            preload_content=False,
        )
        try:
            return Response(response.status, response.headers, _start_of_body(response, max_bytes))
        finally:
            response.close()


def _start_of_body(response: urllib3.BaseHTTPResponse, max_bytes: int) -> str:
    """Return the start of the body, or "" if it can't be read: the status is the answer."""
    try:
        return read_start(response, max_bytes).decode("utf-8", "replace")
    except (urllib3.exceptions.HTTPError, OSError):
        return ""


def _pool(parts: SplitResult, address: str, host: str, port: int) -> urllib3.HTTPConnectionPool:
    """Return a pool for the checked address; the certificate must still be the host's."""
    if parts.scheme == "https":
        context = ssl.create_default_context()
        return HttpsPool(
            address, port, server_hostname=host, assert_hostname=host, ssl_context=context
        )
    return HttpPool(address, port)


def _target(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _resolve(host: str, port: int, service: str, *, is_required: bool) -> list[str]:
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [str(entry[4][0]) for entry in entries]
    except (OSError, UnicodeError) as error:
        if is_required:
            raise DeliveryFailedError(
                f"{service} could not be reached: its host name does not resolve"
            ) from error
        return []


def _proxy(scheme: str, host: str) -> str | None:
    proxy = urllib.request.getproxies().get(scheme)
    return None if proxy is None or urllib.request.proxy_bypass(host) else proxy


def _reason(error: Exception) -> str:
    """Name the kind of error: the messages of urllib3 contain addresses."""
    return {
        "NewConnectionError": "connection refused",
        "ConnectTimeoutError": f"no connection within {TIMEOUT_S:.0f} s",
        "ReadTimeoutError": f"no answer within {TIMEOUT_S:.0f} s",
        "SSLError": "its certificate is not accepted",
    }.get(type(error).__name__, type(error).__name__)
