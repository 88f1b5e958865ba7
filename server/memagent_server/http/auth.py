"""Checks every request: who sends it, from where, and whether that may do what it asks.

1. A route declares the scope that it requires with `require_scope`; `credentials` tells which
   scope a token or a cookie has.
2. With MEMAGENT_OPEN, and while nobody has created a token, the server is unprotected: anyone on
   this machine may do everything. It then listens on loopback only, and refuses remote clients and
   requests with the mark of a proxy. Because a web page can reach loopback through DNS rebinding,
   the Host header must be a loopback name.
3. A request of a browser that changes something must come from the server's own origin; `csrf` adds
   a token for forms.
4. A large body is read after `may_send`; its request takes over who sends it.
"""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit

from flask import Flask, Response, current_app, g, request

from memagent_server.http import login_throttle
from memagent_server.http.api_route import CHANGE, READ, RequiredScope, required_scope_of
from memagent_server.http.context import Context, current, limit_to_projects
from memagent_server.http.credentials import (
    UNPROTECTED_ACCESS,
    Access,
    check_cookie,
    check_token,
    is_unprotected,
)
from memagent_server.http.problems import Problem
from memagent_server.http.request_logging import PUBLIC_LINKS
from memagent_server.settings import Settings
from memagent_server.store.engine import Connection
from memagent_server.store.people import mark_seen
from memagent_server.store.tokens import mark_used

USE_RECORDED_EVERY_S = 60.0
"""`last_used_at` is written at most this often, so that not every read becomes a write."""
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

_PUBLIC_PATHS = (
    "/healthz",
    "/readyz",
    "/openapi.json",
    "/login",
    "/login/oidc",
    "/login/oidc/callback",
    "/logout",
)
_PUBLIC_FOLDERS = ("/static/", PUBLIC_LINKS)
_PROXY_HEADERS = (
    "Forwarded",
    "Via",
    "X-Real-IP",
    "X-Client-IP",
    "X-Original-Host",
    "CF-Connecting-IP",
    "CF-Ray",
    "True-Client-IP",
    "Fly-Client-IP",
)
_PROXY_PREFIX = "x-forwarded-"
_ACCESS = "memagent_access"
EARLY_ACCESS = "memagent.access"


def install(app: Flask) -> None:
    """Check every request before it is served."""
    app.before_request(check_request)


def check_request() -> Response | None:
    """Return None to continue, or a redirect to the login page. Raises Problem 401 or 403."""
    if _is_public():
        return None
    context = current()
    now = context.clock()
    is_known = EARLY_ACCESS in request.environ
    access = request.environ[EARLY_ACCESS] if is_known else _identify(now)
    if access is None:
        return _request_token()
    access = _check_scope(access, required_scope())
    _record_use(context, access, now)
    setattr(g, _ACCESS, access)
    if access.projects:
        limit_to_projects(access.projects)
    return None


def may_send(app: Flask, environ: dict[str, Any]) -> bool:
    """Check the sender of a large body by the head of its request, before anything reads it.

    An error is raised again by the request's own check.
    """
    with app.request_context(environ), suppress(Exception):
        access = None if _is_public() else _identify(current().clock())
        environ[EARLY_ACCESS] = access
        if access is not None:
            _check_scope(access, required_scope())
            return True
    return False


def _is_public() -> bool:
    return request.path in _PUBLIC_PATHS or request.path.startswith(_PUBLIC_FOLDERS)


def _identify(now: float) -> Access | None:
    """Return what the sender may do, None if it is unknown. Raises Problem 403 or 429."""
    context = current()
    token = _bearer_token()
    if token:
        # before the database is asked: a blocked address's token is never checked
        login_throttle.refuse_blocked(token)
    with context.database.connect() as connection:
        if is_unprotected(connection, context.settings):
            _refuse_remote_client()
            refuse_foreign_origin()
            return UNPROTECTED_ACCESS
        access = _find_access(connection, context.settings, token, now)
    if token:
        login_throttle.add_check(token, is_valid=access is not None)
    return access


def current_access() -> Access | None:
    """Return the access of this request, None on public paths."""
    return getattr(g, _ACCESS, None)


def may_change(project: str | None = None) -> bool:
    """Check whether this request's sender may change a project, by default any."""
    access = current_access()
    return access is not None and access.may_change(project)


def check_project(project: str) -> None:
    """Raises Problem 403 if this request's token is limited to other projects."""
    access = current_access()
    if access is not None and not access.can_see(project):
        raise Problem(403, f"{_limited(access)} and cannot write to {project!r}.", field="project")


def required_scope() -> RequiredScope:
    """Return what this request requires of its token."""
    changes = request.method not in SAFE_METHODS
    if request.endpoint is None:
        return RequiredScope(CHANGE.scope if changes else READ.scope)
    return required_scope_of(current_app.view_functions[request.endpoint], changes=changes)


def _check_scope(access: Access, required: RequiredScope) -> Access:
    """Return the access of a request with this scope. Raises Problem 403."""
    access = access.for_scope(required.scope)
    if required.scope is not None and not access.allows(required.scope):
        raise Problem(
            403, f"{_subject(access)} scope '{access.scope}'; '{required.scope}' is required."
        )
    if required.of_server and access.projects:
        raise Problem(
            403,
            f"{_limited(access)}. This request concerns the whole server: "
            "use a token for all projects.",
        )
    return access


def _subject(access: Access) -> str:
    return "This token has" if access.person is None else "You have"


def _limited(access: Access) -> str:
    subject = "This token is" if access.person is None else "You are"
    return f"{subject} limited to {_list_projects(access)}"


def _list_projects(access: Access) -> str:
    return f"the project{'s' if len(access.projects) > 1 else ''} {', '.join(access.projects)}"


def _bearer_token() -> str | None:
    """Return the token of the Authorization header: None without a header, "" if it has none."""
    header = request.headers.get("Authorization", "")
    scheme, _, token = header.partition(" ")
    if not token:
        return None
    return token.strip() if scheme.lower() == "bearer" else ""


def _find_access(
    connection: Connection, settings: Settings, token: str | None, now: float
) -> Access | None:
    """Return what the request's token allows, or without one its cookie."""
    if token is not None:
        return check_token(connection, settings, token, now) if token else None
    access = check_cookie(connection, settings, now)
    if access is not None:
        refuse_foreign_origin()
    return access


def _request_token() -> Response:
    is_page = request.method == "GET" and not request.path.startswith(("/api/", "/metrics"))
    if is_page and request.accept_mimetypes.accept_html:
        target = quote(request.full_path.rstrip("?"), safe="")
        return Response(status=303, headers={"Location": f"/login?next={target}"})
    raise Problem(
        401,
        "A token is required: send the header `Authorization: Bearer TOKEN`. "
        "`memagent token create` creates one.",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _refuse_remote_client() -> None:
    """Require a loopback address and a loopback name, and no mark of a proxy.

    A proxy's clients and its Host header may be anything.
    """
    if _is_proxied() or not is_loopback_name(request.remote_addr or ""):
        raise Problem(
            403,
            "Without tokens, this server serves only its own machine, and not through a proxy. "
            "Create a token first.",
        )
    if not is_loopback_name(urlsplit(f"//{request.host}").hostname or ""):
        raise Problem(
            403,
            f"Without tokens, this server serves only loopback names, not {request.host}. "
            "Create a token first.",
        )


def _is_proxied() -> bool:
    """Check for the marks of a proxy. With nginx's defaults, HTTP/1.0 is the only one: browsers,
    agents and Prometheus use HTTP/1.1. granian calls it 1.
    """
    if request.environ.get("SERVER_PROTOCOL") in ("HTTP/1.0", "HTTP/1"):
        return True
    names = [name.lower() for name in request.headers.keys()]  # noqa: SIM118 - it yields pairs
    return any(name.startswith(_PROXY_PREFIX) for name in names) or any(
        name in request.headers for name in _PROXY_HEADERS
    )


def is_loopback_name(host: str) -> bool:
    """Check that a host name or address can only mean this machine."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def refuse_foreign_origin() -> None:
    """Raises Problem 403 for a change that another site's page sends.

    Scripts and agents send no Origin.
    """
    if request.method in SAFE_METHODS:
        return
    origin = request.headers.get("Origin")
    own_hosts = (request.host, urlsplit(current().settings.public_url).netloc)
    if origin is not None and urlsplit(origin).netloc not in own_hosts:
        raise Problem(403, f"Pages of {origin} cannot change anything on this server.")
    if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
        raise Problem(403, "Pages of other sites cannot change anything on this server.")


def _record_use(context: Context, access: Access, now: float) -> None:
    if not is_use_due(access, now):
        return
    with context.database.write() as session:
        if access.token_id is not None:
            mark_used(session, access.token_id, now)
        elif access.person is not None:
            mark_seen(session, access.person.id, now)


def is_use_due(access: Access, now: float) -> bool:
    """Check whether `last_used_at` of the token, or the person's, is to be written."""
    used_at = access.last_used_at
    is_recent = used_at is not None and now - used_at < USE_RECORDED_EVERY_S
    return (access.token_id is not None or access.person is not None) and not is_recent
