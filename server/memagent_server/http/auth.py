"""Authentication and authorization: bearer tokens with a scope, and a signed cookie for browsers.

1. A token is random and shown once. The database stores its HMAC-SHA256 under the server's secret
   key: a stolen database opens nothing.
2. Scope `ingest` may post what agents post; `read` may read everything, and acknowledge alerts;
   `admin` may do everything. MEMAGENT_ADMIN_TOKEN is one more admin token. A route declares the
   scope that it requires with `require_scope`. A token that is limited to projects reads and writes
   only their runs, and cannot change the server as a whole.
3. While no token has ever been created and no admin token is set, the server is unprotected: anyone
   on this machine may do everything. It then listens on loopback only, and refuses remote clients
   and requests with the mark of a proxy. Because a web page can reach loopback through DNS
   rebinding, the Host header must be a loopback name.
4. Browsers log in with a token and get a signed, HttpOnly, SameSite=Lax cookie, which is checked
   against the database each time: for its token, and for a logout. A request that changes
   something must come from the server's own origin; `csrf` adds a token for forms.
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

from memagent_server.http import login_throttle
from memagent_server.http.api_route import CHANGE, READ, RequiredScope, required_scope_of
from memagent_server.http.context import Context, current, limit_to_projects
from memagent_server.http.problems import Problem
from memagent_server.settings import Settings
from memagent_server.store.engine import Connection, Session
from memagent_server.store.models import TokenRow
from memagent_server.store.tokens import (
    ValidToken,
    any_token,
    create_token,
    end_session,
    find_token,
    get_token,
    is_session_ended,
    mark_used,
)

COOKIE = "memagent_session"
SESSION_S = 14 * 86400
USE_RECORDED_EVERY_S = 60.0
"""`last_used_at` is written at most this often, so that not every read becomes a write."""
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

_PUBLIC_PATHS = ("/healthz", "/readyz", "/openapi.json", "/login", "/logout")
_PUBLIC_FOLDERS = ("/static/",)
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
_NEW_COOKIE = "memagent_new_session"


@dataclass(frozen=True)
class Access:
    """What a token allows. `token_id` is None for the admin token of the settings and on an
    unprotected server.

    Empty `projects` mean all projects.
    """

    scope: str
    token_id: int | None = None
    name: str = ""
    projects: tuple[str, ...] = ()
    last_used_at: float | None = None

    def allows(self, scope: str) -> bool:
        return self.scope in (scope, "admin")

    def can_see(self, project: str) -> bool:
        return not self.projects or project in self.projects


UNPROTECTED_ACCESS = Access("admin", name="everybody")
_CONFIGURED_ADMIN = Access("admin", name="MEMAGENT_ADMIN_TOKEN")


def new_token() -> str:
    """Return a new token with 256 random bits."""
    return f"mag_{secrets.token_urlsafe(32)}"


def token_hash(settings: Settings, token: str) -> str:
    """Return the form of a token that is stored."""
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
) -> tuple[str, TokenRow]:
    """Create a token; return its secret, which cannot be shown again, and its row."""
    secret = new_token()
    token = create_token(
        session,
        name=name,
        scope=scope,
        token_hash=token_hash(settings, secret),
        now=now,
        projects=projects,
        expires_at=expires_at,
    )
    return secret, token


def check_token(
    db: Session | Connection, settings: Settings, token: str, now: float
) -> Access | None:
    """Return what a token allows, None if it is unknown, revoked or expired.

    A wrong token takes as long as a right one.
    """
    hashed = token_hash(settings, token)
    if settings.admin_token is not None and hmac.compare_digest(
        hashed, token_hash(settings, settings.admin_token)
    ):
        return _CONFIGURED_ADMIN
    row = find_token(db, hashed, now)
    is_known = row is not None and hmac.compare_digest(row.hash, hashed)
    return access_of(row) if row is not None and is_known else None


def is_unprotected(db: Session | Connection, settings: Settings) -> bool:
    """Check whether no token has ever been created and no admin token is set."""
    return settings.admin_token is None and not any_token(db)


def start_session(settings: Settings, access: Access) -> str:
    """Return a new session cookie. Forms that are rendered into this response are valid for it."""
    cookie = _new_cookie(settings, access)
    setattr(g, _NEW_COOKIE, cookie)
    return cookie


def session_cookie() -> str:
    """Return the browser's session cookie, or the one that it gets with this response."""
    cookie: str = g.get(_NEW_COOKIE) or request.cookies.get(_cookie_name(), "")
    return cookie


def set_session_cookie(
    response: Response, settings: Settings, access: Access, cookie: str | None = None
) -> None:
    """Log a browser in, with the cookie of `start_session` if there is one."""
    response.set_cookie(
        settings.cookie_name(COOKIE),
        cookie or _new_cookie(settings, access),
        max_age=SESSION_S,
        httponly=True,
        samesite="Lax",
        secure=settings.is_https,
    )


def end_current_session() -> None:
    """End the browser's session on the server, so that a copy of its cookie is refused."""
    context = current()
    content = _read_cookie(context.settings)
    if content is None:
        return
    now = context.clock()
    with context.database.write() as session:
        # the cookie is younger than now, so it expires before this
        end_session(session, content[1], expires_at=now + SESSION_S, now=now)


def clear_session_cookie(response: Response, settings: Settings) -> None:
    response.delete_cookie(
        settings.cookie_name(COOKIE), httponly=True, samesite="Lax", secure=settings.is_https
    )


def has_session_cookie() -> bool:
    """Check whether the browser sent a session cookie, valid or not."""
    return _cookie_name() in request.cookies


def install(app: Flask) -> None:
    """Check every request before it is served."""
    app.before_request(check_request)


def check_request() -> Response | None:
    """Return None to continue, or a redirect to the login page. Raises Problem 401 or 403."""
    if request.path in _PUBLIC_PATHS or request.path.startswith(_PUBLIC_FOLDERS):
        return None
    context = current()
    now = context.clock()
    token = _bearer_token()
    if token:
        # before the database is asked: a blocked address's token is never checked
        login_throttle.refuse_blocked(token)
    with context.database.connect() as connection:
        if is_unprotected(connection, context.settings):
            _refuse_remote_client()
            refuse_foreign_origin()
            setattr(g, _ACCESS, UNPROTECTED_ACCESS)
            return None
        access = _find_access(connection, context.settings, token, now)
    if token:
        login_throttle.add_check(token, is_valid=access is not None)
    if access is None:
        return _request_token()
    _check_scope(access, required_scope())
    _record_use(context, access, now)
    setattr(g, _ACCESS, access)
    if access.projects:
        limit_to_projects(access.projects)
    return None


def current_access() -> Access | None:
    """Return the access of this request, None on public paths."""
    return getattr(g, _ACCESS, None)


def check_project(project: str) -> None:
    """Raises Problem 403 if this request's token is limited to other projects."""
    access = current_access()
    if access is not None and not access.can_see(project):
        raise Problem(
            403,
            f"This token is limited to {_list_projects(access)}; it cannot write to {project!r}.",
            field="project",
        )


def required_scope() -> RequiredScope:
    """Return what this request requires of its token."""
    changes = request.method not in SAFE_METHODS
    if request.endpoint is None:
        return RequiredScope(CHANGE.scope if changes else READ.scope)
    return required_scope_of(current_app.view_functions[request.endpoint], changes=changes)


def _check_scope(access: Access, required: RequiredScope) -> None:
    if required.scope is not None and not access.allows(required.scope):
        raise Problem(
            403, f"This token has scope '{access.scope}'; '{required.scope}' is required."
        )
    if required.of_server and access.projects:
        raise Problem(
            403,
            f"This token is limited to {_list_projects(access)}. "
            "This request concerns the whole server: use a token for all projects.",
        )


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
    access = _check_cookie(connection, settings, now)
    if access is not None:
        refuse_foreign_origin()
    return access


def _check_cookie(connection: Connection, settings: Settings, now: float) -> Access | None:
    content = _read_cookie(settings)
    if content is None:
        return None
    key, session_id = content
    if is_session_ended(connection, session_id):
        return None
    # a token's id is a number, the admin token's key a text
    if isinstance(key, str):
        is_admin = settings.admin_token is not None
        is_admin = is_admin and hmac.compare_digest(key, _admin_key(settings))
        return _CONFIGURED_ADMIN if is_admin else None
    row = get_token(connection, key, now)
    return access_of(row) if row is not None else None


def _read_cookie(settings: Settings) -> tuple[int | str, str] | None:
    """Return the key and the session's id of the browser's cookie, None if it isn't valid."""
    cookie = request.cookies.get(_cookie_name())
    if not cookie:
        return None
    try:
        key, session_id = _serializer(settings).loads(cookie, max_age=SESSION_S)
    except (BadData, TypeError, ValueError):  # also the cookie of an earlier version
        return None
    return key, str(session_id)


def access_of(token: ValidToken | TokenRow) -> Access:
    return Access(token.scope, token.id, token.name, tuple(token.projects), token.last_used_at)


def _cookie_name() -> str:
    return current().settings.cookie_name(COOKIE)


def _new_cookie(settings: Settings, access: Access) -> str:
    key = access.token_id if access.token_id is not None else _admin_key(settings)
    return str(_serializer(settings).dumps([key, secrets.token_urlsafe(16)]))


def _admin_key(settings: Settings) -> str:
    """Identify the admin token without revealing it: a new one ends the old one's sessions."""
    return token_hash(settings, f"session {settings.admin_token}")


def _serializer(settings: Settings) -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(settings.secret_key, salt="memagent-session")


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
    if access.token_id is None:
        return
    if access.last_used_at is not None and now - access.last_used_at < USE_RECORDED_EVERY_S:
        return
    with context.database.write() as session:
        mark_used(session, access.token_id, now)
