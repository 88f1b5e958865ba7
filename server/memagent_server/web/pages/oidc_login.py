"""Log in with the OpenID Connect provider: to the provider, and back with a code.

The browser that begins a login gets a signed cookie with its state, which is valid once and for
ATTEMPT_S: an answer that another browser began, or that comes twice, is refused.
"""

from __future__ import annotations

import hmac
import logging
import secrets

from flask import Blueprint, Response, request
from itsdangerous import BadData, URLSafeTimedSerializer

from memagent_server.http import change_log, credentials
from memagent_server.http.context import current
from memagent_server.http.oidc import Account, LoginAttempt, OidcError, Provider, current_provider
from memagent_server.http.problems import Problem
from memagent_server.store.people import put_person
from memagent_server.store.tokens import end_session
from memagent_server.web.pages.login import login_form
from memagent_server.web.rendering import redirect_to, safe_path

blueprint = Blueprint("oidc_login", __name__)

COOKIE = "memagent_oidc"
ATTEMPT_S = 600
"""Time to enter a password and a second factor."""
MAX_TARGET_LENGTH = 2_000
"""Characters; a cookie has 4 KB."""
MAX_CODE_LENGTH = 4_096
_CALLBACK = "/login/oidc/callback"
_log = logging.getLogger(__name__)


@blueprint.get("/login/oidc")
def begin_login() -> Response:
    provider = _require_provider()
    target = safe_path(request.args.get("next"))
    if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
        # another site's page must not begin a login
        return redirect_to("/login")
    if len(target) > MAX_TARGET_LENGTH:
        target = "/"
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    attempt = LoginAttempt(state, nonce, verifier, target)
    try:
        address = provider.login_url(attempt, _redirect_uri())
    except OidcError as error:
        return _failure(error, 502)
    response = Response(status=303, headers={"Location": address, "Cache-Control": "no-store"})
    content = _serializer().dumps([state, nonce, verifier, target])
    _set_cookie(response, str(content), ATTEMPT_S)
    return response


@blueprint.get(_CALLBACK)
def finish_login() -> Response:
    provider = _require_provider()
    if request.method != "GET":  # HEAD must change nothing
        return Response(status=204)
    attempt = _spend_attempt()
    if attempt is None:
        response = login_form(
            "This login was begun in another browser, is over, or took more than "
            f"{ATTEMPT_S // 60} minutes. Log in again.",
            400,
        )
    else:
        response = _answer(provider, attempt)
    _set_cookie(response, "", 0)
    return response


def _answer(provider: Provider, attempt: LoginAttempt) -> Response:
    arguments, name = request.args, provider.settings.name
    if arguments.get("iss", provider.settings.issuer) != provider.settings.issuer:
        return _failure(OidcError("The answer came from another provider. Log in again."), 400)
    code = arguments.get("code", "")
    if "error" in arguments or not 0 < len(code) <= MAX_CODE_LENGTH or not code.isprintable():
        return _failure(OidcError(f"{name} didn't log you in. Log in again."), 403)
    try:
        account = provider.identify(code, attempt, _redirect_uri())
    except OidcError as error:
        return _failure(error, 502)
    return _log_in(provider, account, attempt.target)


def _log_in(provider: Provider, account: Account, target: str) -> Response:
    """Store the person, and start a session if a group gives any rights."""
    context, rights = current(), provider.settings.rights_of(account.groups)
    now = context.clock()
    with context.database.write() as session:
        person = put_person(
            session,
            issuer=provider.settings.issuer,
            subject=account.subject,
            name=account.name,
            email=account.email,
            scope=rights.scope if rights else None,
            projects=rights.projects if rights else (),
            admin_projects=rights.admin_projects if rights else (),
            now=now,
        )
    change_log.add_login(account.name, account.email)
    access = credentials.access_of_person(person)
    if access is None:
        who = account.email or account.name
        return login_form(
            f"{provider.settings.name} knows you as {who}, but none of your groups opens this "
            "server. Ask an administrator for a group, then log in again.",
            403,
        )
    response = redirect_to(target)
    credentials.set_session_cookie(response, context.settings, access)
    response.headers["Cache-Control"] = "no-store"
    return response


def _failure(error: OidcError, status: int) -> Response:
    _log.warning("login failed: %s", error)
    return login_form(str(error), status)


def _require_provider() -> Provider:
    provider = current_provider()
    if provider is None:
        raise Problem(404, "This server has no provider to log in with: use a token.")
    return provider


def _spend_attempt() -> LoginAttempt | None:
    """Return the browser's login if the answer is to it, and the first one."""
    try:
        content = _serializer().loads(request.cookies.get(_cookie_name(), ""), max_age=ATTEMPT_S)
        attempt = LoginAttempt(*content)
    except (BadData, TypeError):
        return None
    if not hmac.compare_digest(request.args.get("state", "").encode(), attempt.state.encode()):
        return None
    context = current()
    now = context.clock()
    with context.database.write() as session:
        # state has 43 characters, the column 64
        key, over_at = f"oidc-{attempt.state}", now + 2 * ATTEMPT_S
        return attempt if end_session(session, key, expires_at=over_at, now=now) else None


def _redirect_uri() -> str:
    return current().settings.public_url + _CALLBACK


def _set_cookie(response: Response, content: str, max_age: int) -> None:
    response.set_cookie(
        _cookie_name(),
        content,
        max_age=max_age,
        httponly=True,
        # Lax, for the provider's redirect must send it
        samesite="Lax",
        secure=current().settings.is_https,
    )


def _cookie_name() -> str:
    return current().settings.cookie_name(COOKIE)


def _serializer() -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(current().settings.secret_key, salt="memagent-oidc")
