"""The server of memagent: API, pages, metrics and the worker that evaluates runs."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memagent_server.http.asgi import AsgiApp


def asgi_app() -> AsgiApp:
    """Create the app of a web process of `memagent serve`.

    Garbage collections would take a sixth of its start, and later ones would visit each module and
    table again.
    """
    gc.disable()
    from memagent_server import supervisor

    app = supervisor.asgi_app()
    gc.freeze()
    gc.enable()
    return app
