"""Reference server that answers 204 to everything, on granian and Flask like memagent's: `python -m
benchmarks.server.empty PORT PROCESSES`.
"""

from __future__ import annotations

import sys

from flask import Flask, Response

from memagent_server.supervisor import BLOCKING_THREADS


def app() -> Flask:
    """Read the body, as any server must, and return an empty response."""
    from flask import request

    application = Flask("empty")

    @application.post("/<path:path>")
    def post(path: str) -> Response:  # noqa: ARG001 - Flask names it
        request.get_data()
        return Response(status=204)

    return application


def main() -> None:
    from granian import Granian
    from granian.constants import Interfaces
    from granian.log import LogLevels

    port, processes = int(sys.argv[1]), int(sys.argv[2])
    print(f"http://127.0.0.1:{port}", flush=True)
    Granian(
        "benchmarks.server.empty:app", factory=True, interface=Interfaces.WSGI, address="127.0.0.1", port=port,
        workers=processes, blocking_threads=BLOCKING_THREADS, log_level=LogLevels.error, websockets=False,
    ).serve()  # fmt: skip


if __name__ == "__main__":
    main()
