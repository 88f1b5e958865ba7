"""A real server whose deadlines pass within seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live_server import LiveServer

PROGRAM = Path(__file__).with_name("serve_with_short_deadlines.py")


@pytest.fixture(scope="session")
def short_deadline_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Start it without a worker, once for all tests of the group `short-deadlines`."""
    folder = tmp_path_factory.mktemp("short-deadlines")
    server = LiveServer.start(folder, "127.0.0.1:0", ("--role", "web"), {}, (str(PROGRAM),))
    yield server
    server.kill()
