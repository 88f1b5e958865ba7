"""Downloads that are made while they are sent: few at a time, since each has a process."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator

from flask import current_app

from memagent_server.http.problems import Problem

EXTENSION = "memagent_downloads"
MAX_DOWNLOADS = 4
RETRY_AFTER_S = 5


def begin_download(pieces: Generator[bytes, None, None]) -> Download:
    """Take one of the process's places. Raises Problem 503 if none is free."""
    places: deque[None] = current_app.extensions.setdefault(
        EXTENSION, deque([None] * MAX_DOWNLOADS)
    )
    try:
        places.pop()
    except IndexError:
        raise Problem(
            503,
            f"{MAX_DOWNLOADS} exports are being downloaded. Try again in {RETRY_AFTER_S} s.",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        ) from None
    return Download(pieces, places)


class Download:
    """Pieces of a file, and its place until it is closed or forgotten.

    A place is given back without a lock: the collector may do so while this thread takes one.
    """

    def __init__(self, pieces: Generator[bytes, None, None], places: deque[None]) -> None:
        self._pieces = pieces
        self._places: deque[None] | None = places

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def close(self) -> None:
        places, self._places = self._places, None
        if places is not None:
            places.append(None)
            self._pieces.close()

    __del__ = close
