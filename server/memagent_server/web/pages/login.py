"""Log in with a token, or once with a link, for a signed cookie, and log out again."""

from __future__ import annotations

from flask import Blueprint, Response, render_template, request

from memagent_server.http import change_log, credentials, local_access, login_throttle, oidc
from memagent_server.http.context import current
from memagent_server.web.rendering import redirect_to, safe_path

blueprint = Blueprint("login", __name__)


@blueprint.get("/login")
def show_login() -> Response:
    context = current()
    with context.database.read() as session:
        if credentials.is_unprotected(session, context.settings):
            return redirect_to(request.args.get("next"))
    code = request.args.get("code")
    return login_form() if code is None else _follow_link(code)


@blueprint.post("/login")
def log_in() -> Response:
    login_throttle.refuse_blocked()
    context = current()
    token = request.form.get("token", "").strip()
    with context.database.read() as session:
        if credentials.is_unprotected(session, context.settings):
            return redirect_to(request.form.get("next"))
        access = credentials.check_token(session, context.settings, token, context.clock())
    if token:
        login_throttle.add_check(token, is_valid=access is not None)
    if access is None:
        return login_form(
            "Unknown, revoked or expired token. Check that you pasted all of it.", 401
        )
    change_log.add_login(*change_log.author_of(access))
    if not access.allows("read"):
        return login_form(
            f"This token has scope '{access.scope}'. To see pages, use one with scope 'read'.", 403
        )
    response = redirect_to(request.form.get("next"))
    credentials.set_session_cookie(response, context.settings, access)
    return response


def _follow_link(code: str) -> Response:
    context = current()
    now = context.clock()
    access = None
    if request.method == "GET":  # HEAD must change nothing
        access = local_access.spend_code(context.database, context.settings, code, now)
    response = redirect_to(request.args.get("next"))
    if access is not None:
        change_log.add_login(*change_log.author_of(access))
        credentials.set_session_cookie(response, context.settings, access)
    else:
        with context.database.connect() as connection:
            if credentials.check_cookie(connection, context.settings, now) is None:
                return login_form("This link was used or has expired.", 401)
    response.headers["Cache-Control"] = "no-store"
    return response


@blueprint.post("/logout")
def log_out() -> Response:
    context = current()
    with context.database.connect() as connection:
        access = credentials.check_cookie(connection, context.settings, context.clock())
    if access is not None:
        change_log.add_login(*change_log.author_of(access))
    credentials.end_current_session()
    response = redirect_to("/login")
    credentials.clear_session_cookie(response, context.settings)
    return response


def login_form(error: str | None = None, status: int = 200) -> Response:
    """Return the page with the ways to log in."""
    target = safe_path(request.values.get("next"))
    settings = current().settings
    uses_links = settings.is_loopback and not settings.is_open
    command = settings.link_command if uses_links else None
    provider = oidc.current_provider()
    page = render_template(
        "login.html",
        error=error,
        target=target,
        link_command=command,
        provider=provider.settings.name if provider is not None else None,
    )
    return Response(page, status, {"Cache-Control": "no-store"}, mimetype="text/html")
