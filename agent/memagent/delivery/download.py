"""A file from a server, piece by piece: for the command line, not for training runs."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from memagent import __version__
from memagent.delivery.client import reason_of
from memagent.errors import DeliveryError

SILENCE_S = 60.0
"""A server that says nothing for so long has hung."""
_PIECE_BYTES = 2**18


def download(server: str, path: str, *, token: str | None = None) -> Iterator[bytes]:
    """Pieces of what `server` answers at `path`. Raises DeliveryError where it refuses, cannot be reached, or breaks off."""
    import urllib3

    headers = {"User-Agent": f"memagent/{__version__}"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    pool = urllib3.PoolManager(retries=False)
    try:
        answer = pool.request(
            "GET",
            server + path,
            headers=headers,
            timeout=SILENCE_S,
            redirect=False,
            preload_content=False,
        )
        if answer.status != 200:
            raise DeliveryError(f"{server} answered {answer.status}{_detail(answer.data)}")
        yield from answer.stream(_PIECE_BYTES)
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise DeliveryError(f"{server}: {reason_of(error)}") from error
    finally:
        pool.clear()


def _detail(body: bytes) -> str:
    try:
        problem = msgspec.json.decode(body[:10_000], type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    return f": {problem['detail']}" if problem.get("detail") else ""
