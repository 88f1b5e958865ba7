"""The API over a database of this machine without a server: its routes, called in this process.

Who can open the database may read all of it, so requests need no token.
"""

from __future__ import annotations

from collections.abc import Iterator

from flask import Flask

from memagent.errors import MemagentError
from memagent_server.http.auth import EARLY_ACCESS
from memagent_server.http.credentials import UNPROTECTED_ACCESS

_HTTP = {"SERVER_PROTOCOL": "HTTP/1.1", EARLY_ACCESS: UNPROTECTED_ACCESS}


class InProcessApi:
    """Requests to an app of this process."""

    def __init__(self, app: Flask) -> None:
        self._client = app.test_client(use_cookies=False)

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Return the status and the body."""
        response = self._client.open(
            path, method=method, data=body, content_type="application/json", environ_overrides=_HTTP
        )
        return response.status_code, response.data

    def download(self, path: str) -> Iterator[bytes]:
        """Yield the pieces of the body. Raises MemagentError if there is none."""
        response = self._client.open(path, environ_overrides=_HTTP)
        if response.status_code != 200:
            raise MemagentError(str((response.json or {}).get("detail")))
        try:
            yield from response.iter_encoded()
        finally:
            response.close()

    def close(self) -> None:
        """Do nothing: the app has no connection of its own."""
