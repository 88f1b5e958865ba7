"""The page of tokens: which there are, a new one, which is shown once, and the end of one."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, request

from memagent.units import DAY_S
from memagent_server.http import auth
from memagent_server.http.context import current
from memagent_server.http.permissions import permit
from memagent_server.http.problems import Problem
from memagent_server.store.rules import known_projects
from memagent_server.store.tokens import SCOPES, describe_token, list_tokens, revoke_token
from memagent_server.web.pages.runs import answer_page, shared_facts

blueprint = Blueprint("tokens", __name__)

LIVES = {"": "never", "30": "in 30 days", "90": "in 90 days", "365": "in a year"}
"""How long a token is good, in days, as the form offers it."""
LONGEST_NAME = 200
MOST_PROJECTS = 50
_FIRST = "scope: the first token closes the door: make it an admin's, for all projects, else nobody could make another"


@blueprint.get("/settings/tokens")
@permit("admin", of_server=True)
def show_tokens() -> Response:
    return _page()


@blueprint.post("/settings/tokens")
@permit("admin", of_server=True)
def change_tokens() -> Response:
    """The form makes a token, a button `revoke` ends the one of that id."""
    return _revoke(request.form["revoke"]) if "revoke" in request.form else _make()


def _make() -> Response:
    name, scope = request.form.get("name", "").strip(), request.form.get("scope", "")
    projects, days = _projects(), request.form.get("days", "")
    if not 0 < len(name) <= LONGEST_NAME or "\0" in name:
        raise Problem(
            422,
            f"name: say in 1 to {LONGEST_NAME} characters what or whom the token is for",
            field="name",
        )
    if scope not in SCOPES:
        raise Problem(422, f"scope: {scope!r} is none of {', '.join(SCOPES)}", field="scope")
    if days not in LIVES:
        raise Problem(
            422, f"days: {days!r} is none of {', '.join(filter(None, LIVES))}", field="days"
        )
    context = current()
    now = context.clock()
    with context.database.write() as session:
        is_first = auth.is_open(session, context.settings)
        if is_first and (scope != "admin" or projects):
            raise Problem(422, _FIRST, field="scope")
        secret, made = auth.issue_token(
            session, context.settings, name=name, scope=scope, now=now, projects=projects,
            expires_at=now + float(days) * DAY_S if days else None,
        )  # fmt: skip
        access = auth.access_of(made)
    if not is_first:
        return _page(secret=secret, made=name)
    session_value = auth.begin_session(context.settings, access)
    response = _page(secret=secret, made=name)
    auth.log_in(response, context.settings, access, session_value)
    return response


def _revoke(given: str) -> Response:
    context = current()
    if not given.isdecimal() or len(given) > 18:
        raise Problem(422, "revoke: write the id of a token", field="revoke")
    with context.database.write() as session:
        is_new = revoke_token(session, int(given), context.clock())
        if is_new is None:
            raise Problem(404, f"no token {given} is known")
        if not is_new:
            raise Problem(409, f"token {given} was revoked before")
    return _page(said=f"Token {given} is worthless from now on.")


def _projects() -> list[str]:
    found = [part.strip() for part in request.form.get("projects", "").split(",") if part.strip()]
    if len(found) > MOST_PROJECTS or any(
        "\0" in name or len(name) > LONGEST_NAME for name in found
    ):
        raise Problem(
            422, f"projects: at most {MOST_PROJECTS}, of 1 to {LONGEST_NAME} characters, separated by commas", field="projects"
        )  # fmt: skip
    return found


def _page(*, secret: str | None = None, made: str = "", said: str | None = None) -> Response:
    context = current()
    with context.database.read() as session:
        tokens = [_described(token, context.clock()) for token in list_tokens(session)]
        is_open = auth.is_open(session, context.settings)
        projects = known_projects(session)
        shared = shared_facts(session)
    response = answer_page(
        "tokens.html", **shared, secret=secret, made=made, said=said, is_open=is_open, scopes=SCOPES, lives=LIVES, projects=projects,
        valid=[token for token in tokens if token["is_valid"]], ended=[token for token in tokens if not token["is_valid"]],
        has_configured=context.settings.admin_token is not None,
    )  # fmt: skip
    if secret is not None:
        response.headers["Cache-Control"] = "no-store"
    return response


def _described(token: Any, now: float) -> dict[str, Any]:
    is_valid = token.revoked_at is None and (token.expires_at is None or token.expires_at > now)
    return {**describe_token(token), "is_valid": is_valid}
