"""The settings pages: alert rules, notification channels, access tokens, and retention."""

from __future__ import annotations

from urllib.parse import quote

from flask import Blueprint, Response, request

from memagent.units import DAY_S
from memagent_server.alerts.rule_config import read_policy
from memagent_server.alerts.rule_definition import Rule, Threshold
from memagent_server.alerts.rules import RULES
from memagent_server.http import auth, credentials
from memagent_server.http.api_route import require_scope
from memagent_server.http.context import current
from memagent_server.http.problems import Problem
from memagent_server.notify import REQUIRED_SETTINGS
from memagent_server.store.models import TokenRow
from memagent_server.store.notifications import list_notifications
from memagent_server.store.public_links import list_links
from memagent_server.store.retention import Limits, find_prunable
from memagent_server.store.rules import EVERY_PROJECT, known_projects
from memagent_server.store.tokens import SCOPES, describe_token, list_tokens, revoke_token
from memagent_server.store.usage import usage
from memagent_server.web import query
from memagent_server.web.api_alerts import (
    RuleChanges,
    RuleSettings,
    describe_channels,
    retry_notification,
    save_rules,
    send_test_message,
)
from memagent_server.web.public_links import describe_link
from memagent_server.web.rendering import redirect_to, render_page

blueprint = Blueprint("settings", __name__, url_prefix="/settings")

MAX_NAME_LENGTH = 200
MAX_TOKEN_PROJECTS = 50
MAX_DEAD_SHOWN = 50
MAX_OLD_RUNS_SHOWN = 100
MIB = 2**20
TOKEN_LIFETIMES = {"": "never", "30": "in 30 days", "90": "in 90 days", "365": "in a year"}
"""Days until a token expires, with the text that the form offers."""


# -- rules ---------------------------------------------------------------------------------------


@blueprint.get("")
def show_rules() -> Response:
    project = query.text("project") or EVERY_PROJECT
    with current().database.read() as session:
        return render_page(
            "settings.html",
            session,
            project=project,
            projects=known_projects(session),
            every_project=EVERY_PROJECT,
            may_change=auth.may_change(project),
            rules=list(read_policy(session, project).values()),
            format_threshold=format_threshold,
            unit_of=unit_of,
            is_saved=query.choice("saved", ("1",)) is not None,
        )


@blueprint.post("")
@require_scope("admin")
def change_rules() -> Response:
    project = request.form.get("project") or EVERY_PROJECT
    if len(project) > MAX_NAME_LENGTH or "\0" in project:
        raise Problem(
            422, f"project: at most {MAX_NAME_LENGTH} characters, without NUL.", field="project"
        )
    is_reset = request.form.get("what") == "reset"
    changes = RuleChanges(
        rules={name: None if is_reset else _rule_of_form(rule) for name, rule in RULES.items()}
    )
    with current().database.write() as session:
        save_rules(session, project, changes)
    chosen = "" if project == EVERY_PROJECT else f"project={quote(project, safe='')}&"
    return redirect_to(f"/settings?{chosen}saved=1")


def format_threshold(threshold: Threshold, value: float) -> str:
    """Return a threshold in its unit of the page: bytes in MiB, shares in per cent."""
    return f"{value * _unit_and_scale(threshold)[1]:g}"


def unit_of(threshold: Threshold) -> str:
    return _unit_and_scale(threshold)[0]


def _unit_and_scale(threshold: Threshold) -> tuple[str, float]:
    """Return the unit of the page, and the factor to it. A ratio that can't exceed 1 is a share."""
    if threshold.unit == "ratio":
        return ("%", 100) if threshold.most <= 1 else ("×", 1)
    return {"bytes": ("MiB", 1 / MIB), "s": ("s", 1)}[threshold.unit]


def _rule_of_form(rule: Rule) -> RuleSettings:
    thresholds = {}
    for item in rule.thresholds:
        text = request.form.get(f"{rule.name}.{item.name}", "").strip()
        if text:
            try:
                thresholds[item.name] = float(text) / _unit_and_scale(item)[1]
            except ValueError as error:
                raise Problem(
                    422, f"{rule.name}.{item.name}: {text!r} is not a number.", field=item.name
                ) from error
    is_on = request.form.get(f"{rule.name}.is_on") == "on"
    tells = request.form.get(f"{rule.name}.tells")
    return RuleSettings(is_on=is_on, tells=tells, thresholds=thresholds)


# -- channels ------------------------------------------------------------------------------------


@blueprint.get("/channels")
def show_channels() -> Response:
    return _channels_page()


@blueprint.post("/channels")
def change_channels() -> Response:
    """Handle a button of the page: `test_channel` names a channel, `retry` a notification."""
    channel, number = request.form.get("test_channel", ""), request.form.get("retry", "")
    if channel:
        ok, answer = send_test_message(channel)
        return _channels_page(f"{channel}: {'accepted, ' if ok else ''}{answer}", is_error=not ok)
    retry_notification(_form_id("retry", number, "a notification"))
    return _channels_page("The notification will be sent again in a moment.")


def _channels_page(message: str | None = None, *, is_error: bool = False) -> Response:
    """List configured channels first, and the others with the settings that they need."""
    channels = sorted(describe_channels(), key=lambda item: not item.is_set_up)
    with current().database.read() as session:
        dead = list_notifications(session, state="dead", limit=MAX_DEAD_SHOWN).notifications
        return render_page(
            "channels.html",
            session,
            channels=channels,
            required_settings=REQUIRED_SETTINGS,
            dead=dead,
            message=message,
            is_error=is_error,
        )


# -- tokens --------------------------------------------------------------------------------------


@blueprint.get("/tokens")
@require_scope("admin", of_server=True)
def show_tokens() -> Response:
    return _tokens_page()


@blueprint.post("/tokens")
@require_scope("admin", of_server=True)
def change_tokens() -> Response:
    """Create a token, or revoke the one whose id the button `revoke` names."""
    number = request.form.get("revoke")
    return _create_token() if number is None else _revoke_token(number)


def _create_token() -> Response:
    name, scope, days = (request.form.get(field, "").strip() for field in ("name", "scope", "days"))
    projects = _form_projects()
    if not 0 < len(name) <= MAX_NAME_LENGTH or "\0" in name:
        raise Problem(
            422,
            f"name: say in 1 to {MAX_NAME_LENGTH} characters who or what the token is for.",
            field="name",
        )
    if scope not in SCOPES:
        raise Problem(422, f"scope: {scope!r} is not one of {', '.join(SCOPES)}.", field="scope")
    if days not in TOKEN_LIFETIMES:
        options = ", ".join(filter(None, TOKEN_LIFETIMES))
        raise Problem(422, f"days: {days!r} is not one of {options}.", field="days")
    context = current()
    now = context.clock()
    with context.database.write() as session:
        is_first = credentials.is_unprotected(session, context.settings)
        if is_first and (scope != "admin" or projects):
            raise Problem(
                422,
                "scope: the first token protects the server, so it must have scope admin and all "
                "projects. Otherwise no further token could be created.",
                field="scope",
            )
        secret, token = credentials.issue_token(
            session,
            context.settings,
            name=name,
            scope=scope,
            now=now,
            projects=projects,
            expires_at=now + float(days) * DAY_S if days else None,
        )
        access = credentials.access_of(token)
    if not is_first:
        return _tokens_page(secret=secret, name=name)
    # The server was unprotected until now: without a login, this token would lock its creator out.
    cookie = credentials.start_session(context.settings, access)
    response = _tokens_page(secret=secret, name=name)
    credentials.set_session_cookie(response, context.settings, access, cookie)
    return response


def _revoke_token(number: str) -> Response:
    context = current()
    token_id = _form_id("revoke", number, "a token")
    with context.database.write() as session:
        is_revoked = revoke_token(session, token_id, context.clock())
        if is_revoked is None:
            raise Problem(404, f"Unknown token {token_id}.")
        if not is_revoked:
            raise Problem(409, f"Token {token_id} was already revoked.")
    return _tokens_page(message=f"Token {token_id} is revoked.")


def _form_projects() -> list[str]:
    text = request.form.get("projects", "")
    projects = [part.strip() for part in text.split(",") if part.strip()]
    is_bad = any("\0" in name or len(name) > MAX_NAME_LENGTH for name in projects)
    if is_bad or len(projects) > MAX_TOKEN_PROJECTS:
        raise Problem(
            422,
            f"projects: at most {MAX_TOKEN_PROJECTS}, each up to {MAX_NAME_LENGTH} characters, "
            "separated by commas.",
            field="projects",
        )
    return projects


def _tokens_page(
    *, secret: str | None = None, name: str = "", message: str | None = None
) -> Response:
    """Show the tokens. A new token's secret is shown once, so that page is not cached."""
    context = current()
    now = context.clock()
    with context.database.read() as session:
        tokens = list_tokens(session)
        response = render_page(
            "tokens.html",
            session,
            secret=secret,
            name=name,
            message=message,
            is_unprotected=credentials.is_unprotected(session, context.settings),
            scopes=SCOPES,
            lifetimes=TOKEN_LIFETIMES,
            projects=known_projects(session),
            valid=[describe_token(token) for token in tokens if _is_valid(token, now)],
            ended=[describe_token(token) for token in tokens if not _is_valid(token, now)],
            has_admin_token=context.settings.admin_token is not None,
            links=[(describe_link(link), run) for link, run in list_links(session, now)],
        )
    if secret is not None:
        response.headers["Cache-Control"] = "no-store"
    return response


def _is_valid(token: TokenRow, now: float) -> bool:
    return token.revoked_at is None and (token.expires_at is None or token.expires_at > now)


def _form_id(field: str, text: str, what: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise Problem(422, f"{field}: expected the id of {what}.", field=field)
    return int(text)


# -- retention -----------------------------------------------------------------------------------


@blueprint.get("/retention")
def show_retention() -> Response:
    """Show what is stored; with `older_than` in days, also what `memagent prune` would delete.

    The search reads every old run, so it runs only on request.
    """
    context, settings = current(), current().settings
    days = query.number("older_than", least=1, most=36_500)
    with context.database.read() as session:
        old = (
            find_prunable(session, Limits(context.clock() - days * DAY_S))
            if days is not None
            else []
        )
        return render_page(
            "retention.html",
            session,
            usage=usage(session),
            retention_days=settings.retention_days,
            rollup_days=settings.rollup_days,
            days=days,
            old=old[:MAX_OLD_RUNS_SHOWN],
            old_runs=len(old),
            old_bytes=sum(run.packed_bytes for run in old),
        )
