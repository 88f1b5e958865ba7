"""The Flask application factory. Nothing is created at import."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

from flask import Flask, Request
from flask.sessions import NullSession, SessionInterface
from werkzeug.middleware.proxy_fix import ProxyFix

from memagent.errors import MemagentError
from memagent_server import ingest, metrics, web
from memagent_server.http import (
    api_route,
    auth,
    change_log,
    csrf,
    login_throttle,
    oidc,
    problems,
    rate_limits,
    request_logging,
)
from memagent_server.http.asgi import AsgiApp, Background
from memagent_server.http.context import EXTENSION, Context
from memagent_server.http.in_process import InProcessApi
from memagent_server.ingest.direct import DirectBatches
from memagent_server.settings import Settings
from memagent_server.store.engine import Database
from memagent_server.web.setup import security_headers

BLUEPRINTS = (ingest.blueprint, metrics.blueprint, *web.blueprints)


def create_app(
    settings: Settings, database: Database | None = None, *, clock: Callable[[], float] = time.time
) -> Flask:
    """Create the app. `database` is by default that of the settings; its schema must be current."""
    app = _App("memagent_server", static_folder=None, template_folder=None)
    app.extensions[EXTENSION] = Context(
        settings, database or Database(settings.database_url), clock
    )
    app.secret_key = settings.secret_key
    app.session_interface = _NoSessions()
    request_logging.install(app)
    problems.install(app)
    login_throttle.install(app, settings)
    oidc.install(app, settings.oidc, clock)
    auth.install(app)
    change_log.install(app)
    rate_limits.install(app, settings)
    csrf.install(app)
    api_route.install(app)
    for blueprint in BLUEPRINTS:
        app.register_blueprint(blueprint)
    if settings.quota_requests is None and settings.quota_bytes is None:
        direct = DirectBatches(app, security_headers(settings))
        app.wsgi_app = direct  # type: ignore[method-assign]
    app.wsgi_app = _behind_proxies(app.wsgi_app, settings)  # type: ignore[method-assign]
    return app


def open_database(url: str) -> InProcessApi:
    """Return the API over a database of this machine. Raises MemagentError for an old schema."""
    from memagent_server.store import migrate

    database = Database(url)
    if not migrate.is_current(database):
        raise MemagentError(
            "This is no memagent database of this version: "
            "run `memagent db upgrade`, or check the URL."
        )
    settings = Settings(database_url=url, secret_key=secrets.token_hex(), is_open=True)
    return InProcessApi(create_app(settings, database))


def create_asgi_app(app: Flask, threads: int, background: Background) -> AsgiApp:
    """Serve the app under ASGI, with a check of the sender before a large body is read."""
    settings = app.extensions[EXTENSION].settings
    check = _behind_proxies(lambda environ, _: [auth.may_send(app, environ)], settings)
    return AsgiApp(app, lambda environ: any(check(environ, None)), threads, background)


def _behind_proxies(app: Any, settings: Settings) -> Any:
    hops = settings.trusted_proxies
    return ProxyFix(app, x_for=hops, x_proto=hops) if hops else app


class _App(Flask):
    """Flask without a check of each function, at each request, for being a coroutine."""

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return func


class _NoSessions(SessionInterface):
    """Disable Flask's sessions:

    `auth` has its own cookie, and looking for another costs every request.
    """

    def open_session(self, app: Flask, request: Request) -> NullSession:
        return self.make_null_session(app)
