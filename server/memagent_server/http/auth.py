"""Who may do what: bearer tokens with a scope, a signed cookie for browsers, and an open door on loopback only.

1. A token is random, shown once, and kept as HMAC-SHA256 under the server's secret key: a stolen database opens nothing.
2. Scopes: `ingest` may post what agents post; `read` may look, and say of an alert that it was seen; `admin` may do everything.
   MEMAGENT_ADMIN_TOKEN is one more admin. What a route demands stands beside it: see `permit`.
   A token that is limited to projects sees and writes their runs only, and changes nothing that concerns the whole server.
3. While no token was ever made and no admin token is set, everybody on this machine may do everything: the server then listens on loopback
   only, and answers nobody else, nor through a proxy. A web page in somebody's browser can reach loopback too (DNS rebinding), so the Host
   header must then be a loopback name.
4. Browsers log in with a token and get a signed, HttpOnly, SameSite=Lax cookie that is checked against the database each time.
   A request that changes something must come from our own origin; `forms` asks for more where it is a form.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from flask import Flask, Response, current_app, g, request
from itsdangerous import BadData, URLSafeTimedSerializer
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from memagent_server.http.context import Context, current, limit_to
from memagent_server.http.permissions import RequiredScope, permit_of
from memagent_server.http.problems import Problem
from memagent_server.settings import Settings
from memagent_server.store.models import Token
from memagent_server.store.tokens import (
    KnownToken,
    any_token,
    create_token,
    find_token,
    get_token,
    mark_used,
)

COOKIE = SESSION = "memagent_session"
SESSION_S = 14 * 86400
USED_EVERY_S = 60.0
"""`last_used_at` is written at most this often, so that reading does not become writing."""

_OPEN_PATHS = ("/healthz", "/readyz", "/openapi.json", "/login", "/logout")
_OPEN_FOLDERS = ("/static/",)
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True)
class Access:
    """What a token allows. `token_id` is None for the admin token of the settings and for the open door; no `projects` are all."""

    scope: str
    token_id: int | None = None
    name: str = ""
    projects: tuple[str, ...] = ()
    used_at: float | None = None
    """When the token was used before, as far as that was noted."""

    def allows(self, scope: str) -> bool:
        return self.scope in (scope, "admin")

    def sees(self, project: str) -> bool:
        return not self.projects or project in self.projects


OPEN_DOOR = Access("admin", name="everybody")


def new_token() -> str:
    """A token nobody can guess: 256 random bits."""
    return f"mag_{secrets.token_urlsafe(32)}"


def token_hash(settings: Settings, token: str) -> str:
    """What is stored of a token."""
    return hmac.new(settings.secret_key.encode(), token.encode(), hashlib.sha256).hexdigest()


def issue_token(
    session: Session,
    settings: Settings,
    *,
    name: str,
    scope: str,
    now: float,
    projects: Sequence[str] = (),
    expires_at: float | None = None,
) -> tuple[str, Token]:
    """A new token, which nobody can show again, and what is kept of it."""
    secret = new_token()
    kept = create_token(
        session, name=name, scope=scope, token_hash=token_hash(settings, secret), now=now, projects=projects, expires_at=expires_at
    )  # fmt: skip
    return secret, kept


def check_token(
    asked: Session | Connection, settings: Settings, token: str, now: float
) -> Access | None:
    """What a token allows, or None where it is unknown, revoked or expired. Takes as long for a wrong token as for a right one."""
    hashed = token_hash(settings, token)
    if settings.admin_token is not None and hmac.compare_digest(
        hashed, token_hash(settings, settings.admin_token)
    ):
        return Access("admin", name="MEMAGENT_ADMIN_TOKEN")
    found = find_token(asked, hashed, now)
    return (
        access_of(found) if found is not None and hmac.compare_digest(found.hash, hashed) else None
    )


def is_open(asked: Session | Connection, settings: Settings) -> bool:
    """Whether everybody may do everything: no token was ever made and none is set."""
    return settings.admin_token is None and not any_token(asked)


def begin_session(settings: Settings, access: Access) -> str:
    """The cookie's value for what `check_token` returned, before `log_in`: forms on the page of this answer are then good for it."""
    value = _session_of(settings, access)
    setattr(g, SESSION, value)
    return value


def session() -> str:
    """The value of the browser's cookie, or of the one that it gets with this answer."""
    found: str = g.get(SESSION) or request.cookies.get(current().settings.cookie_name(COOKIE), "")
    return found


def log_in(
    response: Response, settings: Settings, access: Access, value: str | None = None
) -> None:
    """Give a browser the cookie for what `check_token` returned, or the one that `begin_session` made."""
    response.set_cookie(
        settings.cookie_name(COOKIE),
        value or _session_of(settings, access),
        max_age=SESSION_S,
        httponly=True,
        samesite="Lax",
        secure=settings.is_https,
    )


def log_out(response: Response, settings: Settings) -> None:
    response.delete_cookie(
        settings.cookie_name(COOKIE), httponly=True, samesite="Lax", secure=settings.is_https
    )


def is_logged_in() -> bool:
    """Whether the browser has a cookie of ours; not whether it is worth anything."""
    return current().settings.cookie_name(COOKIE) in request.cookies


def install(app: Flask) -> None:
    """Check every request before it is served."""
    app.before_request(check_request)


def check_request() -> Response | None:
    """None to go on, a redirect to the login page for browsers. Raises Problem 401 or 403."""
    if _is_open_path(request.path):
        return None
    context = current()
    now = context.clock()
    with context.database.ask() as connection:
        if is_open(connection, context.settings):
            _refuse_foreign_host()
            refuse_foreign_origin()
            g.memagent_access = OPEN_DOOR
            return None
        access = _find_access(connection, context.settings, now)
    if access is None:
        return _ask_for_token()
    _check_permit(access, needed())
    _note_use(context, access, now)
    g.memagent_access = access
    if access.projects:
        limit_to(access.projects)
    return None


def who() -> Access | None:
    """Who makes this request; None on paths that are open to all."""
    return getattr(g, "memagent_access", None)


def check_project(project: str) -> None:
    """Refuse a request that would write to a project that its token does not see. Raises Problem 403."""
    access = who()
    if access is not None and not access.sees(project):
        raise Problem(
            403, f"this token is for {_listed(access)} only, not for {project!r}", field="project"
        )


def needed() -> RequiredScope:
    """What this request demands of its token."""
    changes = request.method not in SAFE_METHODS
    if request.endpoint is None:
        return RequiredScope("admin" if changes else "read")
    return permit_of(current_app.view_functions[request.endpoint], changes=changes)


def _check_permit(access: Access, permit: RequiredScope) -> None:
    if permit.scope is not None and not access.allows(permit.scope):
        raise Problem(
            403, f"this token has the scope {access.scope}, and this needs {permit.scope}"
        )
    if permit.of_server and access.projects:
        raise Problem(
            403, f"this token is for {_listed(access)} only, and this concerns the whole server: it needs one for all projects"
        )  # fmt: skip


def _listed(access: Access) -> str:
    return f"the project{'s' if len(access.projects) > 1 else ''} {', '.join(access.projects)}"


def _find_access(connection: Connection, settings: Settings, now: float) -> Access | None:
    """What the request's token or cookie allows."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if token:
        return (
            check_token(connection, settings, token.strip(), now)
            if scheme.lower() == "bearer"
            else None
        )
    access = _check_cookie(connection, settings, now)
    if access is not None:
        refuse_foreign_origin()
    return access


def _check_cookie(connection: Connection, settings: Settings, now: float) -> Access | None:
    cookie = request.cookies.get(settings.cookie_name(COOKIE))
    if not cookie:
        return None
    try:
        key = _serializer(settings).loads(cookie, max_age=SESSION_S)
    except BadData:
        return None
    if isinstance(key, str):
        is_admin = settings.admin_token is not None and hmac.compare_digest(
            key, _admin_key(settings)
        )
        return Access("admin", name="MEMAGENT_ADMIN_TOKEN") if is_admin else None
    found = get_token(connection, key, now)
    return access_of(found) if found is not None else None


def access_of(token: KnownToken | Token) -> Access:
    return Access(token.scope, token.id, token.name, tuple(token.projects), token.last_used_at)


def _session_of(settings: Settings, access: Access) -> str:
    return str(
        _serializer(settings).dumps(
            access.token_id if access.token_id is not None else _admin_key(settings)
        )
    )


def _admin_key(settings: Settings) -> str:
    """Names the admin token without telling it: a new admin token ends the sessions of the old one."""
    return token_hash(settings, f"session {settings.admin_token}")


def _serializer(settings: Settings) -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(settings.secret_key, salt="memagent-session")


def _is_open_path(path: str) -> bool:
    return path in _OPEN_PATHS or path.startswith(_OPEN_FOLDERS)


def _ask_for_token() -> Response:
    is_page = request.method == "GET" and not request.path.startswith(("/api/", "/metrics"))
    if is_page and request.accept_mimetypes.accept_html:
        return Response(
            status=303,
            headers={"Location": f"/login?next={quote(request.full_path.rstrip('?'), safe='')}"},
        )
    raise Problem(
        401,
        "this needs a token: send the header Authorization: Bearer TOKEN (`memagent token create` makes one)",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _refuse_foreign_host() -> None:
    """Loopback by name and by address; what a proxy hands on may come from anywhere, and a proxy may name any Host."""
    forwarded = any(
        name in request.headers for name in ("Forwarded", "X-Forwarded-For", "X-Real-IP")
    )
    if forwarded or not is_loopback_name(request.remote_addr or ""):
        raise Problem(
            403, "without tokens this server answers to its own machine only, and not through a proxy: create a token first"
        )  # fmt: skip
    if not is_loopback_name(urlsplit(f"//{request.host}").hostname or ""):
        raise Problem(
            403,
            f"without tokens this server answers to loopback names only, not to {request.host}: create a token first",
        )


def is_loopback_name(host: str) -> bool:
    """Whether a host name can only mean this machine."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def refuse_foreign_origin() -> None:
    """Browsers name the page that a request comes from; scripts and agents send no Origin."""
    if request.method in SAFE_METHODS:
        return
    origin = request.headers.get("Origin")
    own = (request.host, urlsplit(current().settings.public_url).netloc)
    if origin is not None and urlsplit(origin).netloc not in own:
        raise Problem(403, f"a page of {origin} may not change anything here")
    if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
        raise Problem(403, "a page of another site may not change anything here")


def _note_use(context: Context, access: Access, now: float) -> None:
    if access.token_id is None or (
        access.used_at is not None and now - access.used_at < USED_EVERY_S
    ):
        return
    with context.database.write() as session:
        mark_used(session, access.token_id, now)
