"""Access to a server on loopback: tokens that it creates by itself, and links that log in once.

1. A server without an administrator's tokens creates three for its address: `ingest` and `read` for
   agents and verbs of its user, in a file (`memagent.wire.local_tokens`), and `admin` for browsers,
   whose secret nobody has.
2. A later server keeps tokens that are valid and in the file; otherwise it revokes and replaces all
   three.
3. A link has a signed code for the `admin` token, with a nonce and a time. The nonce is spent in
   the table of ended sessions, so a code is valid once for all web processes.
"""

from __future__ import annotations

import logging
import secrets
import socket
from pathlib import Path
from urllib.parse import quote

from itsdangerous import BadData, URLSafeSerializer

from memagent.errors import DeliveryError
from memagent.wire import local_tokens
from memagent.wire.local_tokens import LocalTokens
from memagent_server.http.credentials import Access, access_of, check_token, issue_token
from memagent_server.settings import Settings
from memagent_server.store import tokens
from memagent_server.store.engine import Database, Session

LINK_S = 600.0
"""Default lifetime of a code."""

_log = logging.getLogger(__name__)


def ensure_tokens(database: Database, settings: Settings, now: float) -> None:
    """Create the tokens of this address, unless the administrator's or open access replace them."""
    if settings.is_open or settings.admin_token is not None or not settings.is_loopback:
        return
    path = local_tokens.path_of(settings.port)
    with database.write() as session:
        if path is not None and _is_valid(session, settings, _load(path), now):
            return
        if tokens.any_token(session) and not tokens.any_local_token(session):
            return
        created = _replace(session, settings, now)
        try:
            if path is None:
                raise OSError("the user has no home directory")
            local_tokens.store(path, created)
        except OSError as error:
            _log.warning("cannot store the tokens for agents (%s): set MEMAGENT_TOKEN", error)


def new_link(
    database: Database, settings: Settings, now: float, *, path: str = "/", valid_s: float = LINK_S
) -> str | None:
    """Return a link that logs a browser in once, None without a local token for this address."""
    with database.read() as session:
        token = tokens.find_local(session, _name(settings, "admin"), now)
    if token is None:
        return None
    code = _serializer(settings).dumps([token.id, secrets.token_urlsafe(16), now + valid_s])
    target = "" if path == "/" else f"&next={quote(path, safe='/')}"
    return f"{settings.public_url}/login?code={code}{target}"


def spend_code(database: Database, settings: Settings, code: str, now: float) -> Access | None:
    """Return what the code of a link allows, None if it is invalid, expired or used."""
    try:
        token_id, nonce, expires_at = _serializer(settings).loads(code)
    except (BadData, TypeError, ValueError):
        return None
    if now >= expires_at:
        return None
    with database.write() as session:
        token = tokens.get_token(session, token_id, now)
        is_new = tokens.end_session(session, f"link-{nonce}", expires_at=expires_at, now=now)
        return access_of(token) if token is not None and is_new else None


def _load(path: Path) -> LocalTokens | None:
    try:
        return local_tokens.load(path)
    except DeliveryError as error:
        _log.warning("%s", error)
        return None


def _is_valid(session: Session, settings: Settings, stored: LocalTokens | None, now: float) -> bool:
    if stored is None or stored.url != settings.local_url:
        return False
    accesses = [check_token(session, settings, text, now) for text in (stored.ingest, stored.read)]
    scopes = [access.scope for access in accesses if access is not None]
    return scopes == ["ingest", "read"] and bool(
        tokens.find_local(session, _name(settings, "admin"), now)
    )


def _replace(session: Session, settings: Settings, now: float) -> LocalTokens:
    by_scope = {}
    for scope in tokens.SCOPES:
        name = _name(settings, scope)
        tokens.revoke_local(session, name, now)
        by_scope[scope], _ = issue_token(
            session, settings, name=name, scope=scope, now=now, is_local=True
        )
    return LocalTokens(settings.local_url, by_scope["ingest"], by_scope["read"])


def _name(settings: Settings, scope: str) -> str:
    return f"local@{socket.gethostname()}:{settings.port} {scope}"


def _serializer(settings: Settings) -> URLSafeSerializer:
    return URLSafeSerializer(settings.secret_key, salt="memagent-login-link")
