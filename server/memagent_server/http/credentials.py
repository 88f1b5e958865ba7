"""Credentials: bearer tokens with a scope, and a signed cookie for browsers.

1. A token is random and shown once. The database stores its HMAC-SHA256 under the server's secret
   key: a stolen database opens nothing.
2. Scope `ingest` may post what agents post; `read` may read everything, and acknowledge alerts;
   `admin` may do everything. MEMAGENT_ADMIN_TOKEN is one more admin token. A token that is limited
   to projects reads and writes only their runs, and cannot change the server as a whole.
3. Browsers log in with a token and get a signed, HttpOnly, SameSite=Lax cookie, which is checked
   against the database each time: for its token, and for a logout.
4. People who log in with the provider of the settings get such a cookie for PERSON_SESSION_S, with
   the rights of their newest login. One who reads may change some projects: a request that changes
   is limited to them, as one with such a token.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flask import Response, g, request
from itsdangerous import BadData, URLSafeTimedSerializer

from memagent_server.http.context import current
from memagent_server.settings import Settings
from memagent_server.store.engine import Connection, Session
from memagent_server.store.models import TokenRow
from memagent_server.store.people import KnownPerson, get_person
from memagent_server.store.tokens import (
    ValidToken,
    any_token,
    create_token,
    end_session,
    find_token,
    get_token,
    is_session_ended,
)

COOKIE = "memagent_session"
SESSION_S = 14 * 86400
PERSON_SESSION_S = 12 * 3600
"""A working day: who leaves a group at the provider loses access at the next login."""
_NEW_COOKIE = "memagent_new_session"


@dataclass(frozen=True)
class Access:
    """What a token or a person may do. `token_id` is None for people, for the admin token of the
    settings and on an unprotected server.

    Empty `projects` mean all projects. A person who reads may change `admin_projects`.
    """

    scope: str
    token_id: int | None = None
    name: str = ""
    projects: tuple[str, ...] = ()
    last_used_at: float | None = None
    person: KnownPerson | None = None
    admin_projects: tuple[str, ...] = ()

    def allows(self, scope: str) -> bool:
        return self.scope in (scope, "admin")

    def for_scope(self, scope: str | None) -> Access:
        """Return the access of a request: one that changes is limited to what a person may."""
        if scope != "admin" or self.scope == "admin" or not self.admin_projects:
            return self
        return replace(self, scope="admin", projects=self.admin_projects, admin_projects=())

    def may_change(self, project: str | None = None) -> bool:
        """Check whether it may change a project's runs and rules; by default of any project."""
        access = self.for_scope("admin")
        return access.allows("admin") and (project is None or access.can_see(project))

    def may_change_server(self) -> bool:
        return self.allows("admin") and not self.projects

    @property
    def rights(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        return self.scope, self.projects, self.admin_projects

    def can_see(self, project: str) -> bool:
        return not self.projects or project in self.projects


UNPROTECTED_ACCESS = Access("admin", name="everybody")
_CONFIGURED_ADMIN = Access("admin", name="MEMAGENT_ADMIN_TOKEN")


def new_token() -> str:
    """Return a new token with 256 random bits."""
    return f"mag_{secrets.token_urlsafe(32)}"


def issue_token(
    session: Session,
    settings: Settings,
    *,
    name: str,
    scope: str,
    now: float,
    projects: Sequence[str] = (),
    expires_at: float | None = None,
    is_local: bool = False,
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
        is_local=is_local,
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
    """Check whether MEMAGENT_OPEN is set, and neither an admin token nor any token ever created."""
    return settings.is_open and not has_admin_tokens(db, settings)


def has_admin_tokens(db: Session | Connection, settings: Settings) -> bool:
    """Check whether an administrator has set or ever created a token, or people log in with a
    provider.
    """
    return settings.admin_token is not None or settings.oidc is not None or any_token(db)


def access_of(token: ValidToken | TokenRow) -> Access:
    return Access(token.scope, token.id, token.name, tuple(token.projects), token.last_used_at)


def access_of_person(person: KnownPerson) -> Access | None:
    """Return what a person may do, None if that is nothing."""
    if person.scope is None:
        return None
    return Access(
        person.scope,
        name=person.name,
        projects=tuple(person.projects),
        last_used_at=person.last_seen_at,
        person=person,
        admin_projects=tuple(person.admin_projects),
    )


def token_hash(settings: Settings, token: str) -> str:
    """Return the form of a token that is stored."""
    # digest(): a third of the time of an object; each request makes one or two
    return hmac.digest(settings.secret_key.encode(), token.encode(), "sha256").hex()


# -- sessions --------------------------------------------------------------------------------------


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
        max_age=SESSION_S if access.person is None else PERSON_SESSION_S,
        httponly=True,
        samesite="Lax",
        secure=settings.is_https,
    )


def has_session_cookie() -> bool:
    """Check whether the browser sent a session cookie, valid or not."""
    return _cookie_name() in request.cookies


def check_cookie(connection: Connection, settings: Settings, now: float) -> Access | None:
    content = _read_cookie(settings)
    if content is None:
        return None
    key, session_id = content
    if is_session_ended(connection, session_id):
        return None
    # a token's id is a number, the admin token's key a text, a person's a list
    if isinstance(key, list):
        return _check_person(connection, settings, key, now)
    if isinstance(key, str):
        is_admin = settings.admin_token is not None
        is_admin = is_admin and hmac.compare_digest(key, _admin_key(settings))
        return _CONFIGURED_ADMIN if is_admin else None
    row = get_token(connection, key, now)
    return access_of(row) if row is not None else None


def _check_person(
    connection: Connection, settings: Settings, key: list[int], now: float
) -> Access | None:
    """Return what the person of a cookie may do: id, series of sessions, and time of its end."""
    person_id, series, ends_at = key
    person = get_person(connection, person_id) if settings.oidc and now < ends_at else None
    if person is None or settings.oidc is None or person.issuer != settings.oidc.issuer:
        return None
    return access_of_person(person) if person.session_series == series else None


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


def _read_cookie(settings: Settings) -> tuple[int | str | list[int], str] | None:
    """Return the key and the session's id of the browser's cookie, None if it isn't valid."""
    cookie = request.cookies.get(_cookie_name())
    if not cookie:
        return None
    try:
        key, session_id = _serializer(settings).loads(cookie, max_age=SESSION_S)
    except (BadData, TypeError, ValueError):  # also the cookie of an earlier version
        return None
    return key, str(session_id)


def _new_cookie(settings: Settings, access: Access) -> str:
    key: int | str | list[int]
    if access.person is not None:
        ends_at = int(current().clock()) + PERSON_SESSION_S
        key = [access.person.id, access.person.session_series, ends_at]
    else:
        key = access.token_id if access.token_id is not None else _admin_key(settings)
    return str(_serializer(settings).dumps([key, secrets.token_urlsafe(16)]))


def _cookie_name() -> str:
    return current().settings.cookie_name(COOKIE)


def _admin_key(settings: Settings) -> str:
    """Identify the admin token without revealing it: a new one ends the old one's sessions."""
    return token_hash(settings, f"session {settings.admin_token}")


def _serializer(settings: Settings) -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(settings.secret_key, salt="memagent-session")
