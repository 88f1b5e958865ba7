"""Log in with a token, get a signed cookie; log out again. Only matters once tokens exist."""

from __future__ import annotations

from flask import Blueprint, Response, redirect, render_template, request

from memagent_server.http import auth
from memagent_server.http.context import current

blueprint = Blueprint("login", __name__)


@blueprint.get("/login")
def show_login() -> Response:
    context = current()
    with context.database.read() as session:
        if auth.is_open(session, context.settings):
            return _go("/")
    return _form(wrong=None)


@blueprint.post("/login")
def log_in() -> Response:
    context = current()
    with context.database.read() as session:
        access = auth.check_token(
            session, context.settings, request.form.get("token", "").strip(), context.clock()
        )
    if access is None:
        return _form(
            wrong="No such token, or it was revoked or has expired. Check that it was pasted whole.",
            status=401,
        )
    if not access.allows("read"):
        return _form(
            wrong=f"This token may only {access.scope}. Pages need one with the scope read.",
            status=403,
        )
    response = _go(safe_target(request.form.get("next")))
    auth.log_in(response, context.settings, access)
    return response


@blueprint.post("/logout")
def log_out() -> Response:
    response = _go("/login")
    auth.log_out(response, current().settings)
    return response


def safe_target(path: str | None) -> str:
    """Where to go after the login: a path of our own, never another site."""
    if (
        not path
        or not path.startswith("/")
        or path.startswith(("//", "/\\"))
        or not path.isprintable()
    ):
        return "/"
    return path


def _go(target: str) -> Response:
    response = redirect(target, 303)
    return Response(response.get_data(), response.status_code, response.headers)


def _form(*, wrong: str | None, status: int = 200) -> Response:
    target = safe_target(request.values.get("next"))
    page = render_template("login.html", wrong=wrong, target=target)
    return Response(page, status, {"Cache-Control": "no-store"}, mimetype="text/html")
