"""Stored runs by the HTTP API: of a server, or of a database through an app of this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol
from urllib.parse import urlencode

import msgspec

from memagent.api.source import Fields, RunSelection, RunsPage, SampleSelection, run_path
from memagent.delivery.api_client import ApiClient, problem_detail
from memagent.errors import DeliveryError, MemagentError
from memagent.wire.columns import DEFAULT_CODEC
from memagent.wire.sample_stream import SampleFrame, decode_frames

_PAGE_RUNS = 200
_TIMEOUT_S = 30.0
_MAX_BYTES = 64 * 2**20


class ApiRequests(Protocol):
    """Requests to the routes of docs/http.md, wherever they are served."""

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]: ...
    def download(self, path: str) -> Iterator[bytes]: ...
    def close(self) -> None: ...


class HttpStore:
    """A store behind the HTTP API."""

    def __init__(self, place: str, api: ApiRequests) -> None:
        self.place = place
        self._api = api

    def page(self, selection: RunSelection, cursor: str | None) -> RunsPage:
        tag, others = next(iter(selection.tags), None), selection.tags[1:]
        where = [f"({selection.text})"] if selection.text else []
        where += [f"{_quoted(other)} in tags" for other in others]
        query = {
            "project": selection.project,
            "status": selection.status,
            "tag": tag,
            "q": selection.q,
            "where": " and ".join(where) or None,
            "archived": "1" if selection.is_archived else None,
            "sort": selection.order,
            "columns": ",".join(selection.columns) or None,
            "limit": _PAGE_RUNS,
            "cursor": cursor,
        }
        parameters = {name: value for name, value in query.items() if value is not None}
        answer = self._get(f"/api/v1/runs?{urlencode(parameters)}")
        return RunsPage(answer["runs"], answer["next_cursor"])

    def run(self, run_id: str) -> Fields:
        return self._get(run_path(run_id))

    def part(self, run_id: str, name: str) -> Fields:
        if name == "alerts":
            return self._get(f"/api/v1/alerts?{urlencode({'run': run_id, 'limit': _PAGE_RUNS})}")
        return self._get(f"{run_path(run_id)}/{name}")

    def console(self, run_id: str, rank: int | None) -> Fields:
        query = "" if rank is None else f"?rank={rank}"
        return self._get(f"{run_path(run_id)}/console{query}")

    def frames(self, run_id: str, selection: SampleSelection) -> Iterator[SampleFrame]:
        query = {
            "stream": "scalars" if selection.of_scalars else "devices",
            "ranks": ",".join(map(str, selection.ranks)) or None,
            "from": selection.first,
            "to": selection.last,
            "codec": DEFAULT_CODEC,
        }
        parameters = {name: value for name, value in query.items() if value is not None}
        yield from decode_frames(
            self._api.download(f"{run_path(run_id)}/samples?{urlencode(parameters)}")
        )

    def send(self, method: str, path: str, body: Fields | None = None) -> Fields:
        encoded = None if body is None else msgspec.json.encode(body)
        return self._json(*self._api.request(method, path, encoded))

    def close(self) -> None:
        self._api.close()

    def _get(self, path: str) -> Fields:
        return self._json(*self._api.request("GET", path))

    def _json(self, status: int, body: bytes) -> Fields:
        if not 200 <= status < 300:
            detail = problem_detail(body).removeprefix(": ")
            raise MemagentError(detail or f"{self.place} answered {status}.")
        try:
            return msgspec.json.decode(body, type=Fields) if body else {}
        except msgspec.MsgspecError as error:
            raise DeliveryError(f"{self.place} isn't a memagent server: {error}") from error


def server_api(server: str, token: str | None) -> ApiRequests:
    """Return requests to a server over the network."""
    return _ServerRequests(server, token)


def database_api(url: str) -> ApiRequests:
    """Return requests to a database of this machine. Needs the server's packages."""
    try:
        from memagent_server.app import open_database
    except ModuleNotFoundError as error:
        raise MemagentError(
            "Reading a database needs the server's packages: pip install 'memagent[server]'."
        ) from error
    api: ApiRequests = open_database(url)
    return api


class _ServerRequests:
    def __init__(self, server: str, token: str | None) -> None:
        self._client = ApiClient(server, token, {"Content-Type": "application/json"})

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        answer = self._client.request(
            path, method=method, body=body, timeout_s=_TIMEOUT_S, max_bytes=_MAX_BYTES
        )
        return answer.status, answer.body

    def download(self, path: str) -> Iterator[bytes]:
        return self._client.download(path)

    def close(self) -> None:
        self._client.close()


def _quoted(text: str) -> str:
    return f"'{text}'" if '"' in text else f'"{text}"'
