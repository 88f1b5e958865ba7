"""The API and the page of projects' rules about columns and scalars."""

from __future__ import annotations

import math
import re
from typing import Annotated
from urllib.parse import quote

import msgspec
from flask import Blueprint, Response, request
from msgspec import Meta

from memagent.units import DAY_S
from memagent.wire.fields import COLUMN_NAME
from memagent.wire.messages import AlertLevel
from memagent_server.alerts.column_monitor import ColumnTest
from memagent_server.alerts.event_rules import MAX_CAUSE_LENGTH
from memagent_server.http import auth, change_log
from memagent_server.http.api_route import operation, require_scope
from memagent_server.http.context import current
from memagent_server.http.problems import Problem, json_answer
from memagent_server.ingest.body import read_message
from memagent_server.schemas import alerts as schemas
from memagent_server.schemas.queries import RulesQuery
from memagent_server.settings import SEVERITIES
from memagent_server.store.engine import Session
from memagent_server.store.reading import to_schema
from memagent_server.store.rules import (
    EVERY_PROJECT,
    column_rules,
    forget_column_rule,
    known_projects,
    put_column_rule,
)
from memagent_server.web import query
from memagent_server.web.rendering import redirect_to, render_page

blueprint = Blueprint("column_rules", __name__)

MAX_RULES = 50
"""Rules of a project: each is evaluated on every sample."""
MAX_FOR_S = 7 * DAY_S
NAME_PATTERN = r"^[^\x00-\x1f]*[^\s\x00-\x1f][^\x00-\x1f]*$"
"""A letter that prints, and none that controls."""
_COLUMN_PATTERN = (
    COLUMN_NAME.pattern.replace(r"\w", r"\p{L}\p{N}_").replace("/", r"\/").replace(" -]", r" \-]")
)
"""`COLUMN_NAME` as browsers read it, so that a form isn't lost by a wrong name."""
TEST_TEXTS = {
    "above": "above a value",
    "below": "below a value",
    "not_finite": "NaN or infinite",
    "spike": "a spike, in deviations",
    "no_new_low": "no new low",
    "no_new_high": "no new high",
}


class ColumnRuleSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A rule about a column; see docs/alerts.md for its tests."""

    # the schema's pattern only describes: the error of `_check` says more
    column: Annotated[
        str, Meta(max_length=128, extra_json_schema={"pattern": f"^{COLUMN_NAME.pattern}$"})
    ]
    test: ColumnTest
    value: float = 0.0
    for_s: Annotated[float, Meta(ge=0, le=MAX_FOR_S)] = 0.0
    level: AlertLevel = "warning"


class ColumnRuleChanges(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """New rules by name. null removes a rule."""

    rules: dict[
        Annotated[str, Meta(max_length=MAX_CAUSE_LENGTH, pattern=NAME_PATTERN)],
        ColumnRuleSettings | None,
    ]


@blueprint.get("/api/v1/column-rules")
@operation("alerts", "read", schemas.ColumnRules, query=RulesQuery)
def get_column_rules() -> Response:
    """Return a project's rules about columns, and those of every project."""
    project = query.read(RulesQuery).project
    with current().database.read() as session:
        return json_answer(_describe(session, project))


@blueprint.put("/api/v1/column-rules")
@operation("alerts", "admin", schemas.ColumnRules, query=RulesQuery, body=ColumnRuleChanges)
def put_column_rules() -> Response:
    """Add or replace the rules that are named; null removes one.

    All changes are stored, or none.
    """
    project = query.read(RulesQuery).project
    changes = read_message(request, ColumnRuleChanges)
    with current().database.write() as session:
        save_column_rules(session, project, changes)
        session.flush()
        return json_answer(_describe(session, project))


def save_column_rules(session: Session, project: str, changes: ColumnRuleChanges) -> None:
    """Check all changes, then store them. Raises Problem 403 or 422."""
    auth.check_project(project)
    for name, settings in changes.rules.items():
        _check(name, settings)
    own = {row.name for row in column_rules(session, project) if row.project == project}
    added = {name for name, settings in changes.rules.items() if settings is not None}
    if len(own | added) > MAX_RULES:
        raise Problem(422, f"rules: a project has at most {MAX_RULES}.", field="rules")
    with change_log.watch(session, lambda: _describe(session, project).rules):
        _replace_rules(session, project, changes)


def _replace_rules(session: Session, project: str, changes: ColumnRuleChanges) -> None:
    access, now = auth.current_access(), current().clock()
    for name, settings in changes.rules.items():
        if settings is None:
            forget_column_rule(session, project, name)
        else:
            put_column_rule(
                session,
                project=project,
                name=name,
                by=access.name if access is not None else None,
                now=now,
                **msgspec.structs.asdict(settings),
            )


def _check(name: str, settings: ColumnRuleSettings | None) -> None:
    field = f"rules.{name}"
    if not re.fullmatch(NAME_PATTERN, name):
        raise Problem(422, f"{field}: use letters that print.", field=field)
    if settings is None:
        return
    if not COLUMN_NAME.fullmatch(settings.column):
        detail = f"{settings.column!r:.80} can't be a column: it must match {COLUMN_NAME.pattern}."
        raise Problem(422, f"{field}.column: {detail}", field=f"{field}.column")
    if not math.isfinite(settings.value):
        raise Problem(422, f"{field}.value: use a finite number.", field=f"{field}.value")
    if settings.test == "spike" and settings.value < 1:
        detail = f"{settings.value:g} deviations: use 1 or more."
        raise Problem(422, f"{field}.value: {detail}", field=f"{field}.value")
    if settings.test.startswith("no_new") and not 0 <= settings.value < 1:
        detail = f"{settings.value:g} isn't a share from 0 to 1."
        raise Problem(422, f"{field}.value: {detail}", field=f"{field}.value")
    if settings.test.startswith("no_new") and not settings.for_s:
        detail = f"{settings.test} takes a time over 0."
        raise Problem(422, f"{field}.for_s: {detail}", field=f"{field}.for_s")


def _describe(session: Session, project: str) -> schemas.ColumnRules:
    rows = column_rules(session, project)
    return schemas.ColumnRules(project, [to_schema(schemas.ColumnRule, row) for row in rows])


# -- the page ------------------------------------------------------------------------------------


@blueprint.get("/settings/columns")
def show_column_rules() -> Response:
    project = query.text("project") or EVERY_PROJECT
    with current().database.read() as session:
        return render_page(
            "column_rules.html",
            session,
            project=project,
            projects=known_projects(session),
            every_project=EVERY_PROJECT,
            may_change=auth.may_change(project),
            rules=_describe(session, project).rules,
            tests=TEST_TEXTS,
            levels=SEVERITIES,
            max_name=MAX_CAUSE_LENGTH,
            column_pattern=_COLUMN_PATTERN,
        )


@blueprint.post("/settings/columns")
@require_scope("admin")
def change_column_rules() -> Response:
    """Add the rule of the form, or remove the one that the button `remove` names."""
    form = request.form
    project = form.get("project") or EVERY_PROJECT
    removed = form.get("remove")
    name = (removed if removed is not None else form.get("name", "")).strip()
    if not 0 < len(name) <= MAX_CAUSE_LENGTH:
        raise Problem(422, f"name: use 1 to {MAX_CAUSE_LENGTH} characters.", field="name")
    if len(project) > 200 or "\0" in project:
        raise Problem(422, "project: at most 200 characters, without NUL.", field="project")
    settings = None if removed is not None else _settings_of_form()
    with current().database.write() as session:
        save_column_rules(session, project, ColumnRuleChanges(rules={name: settings}))
    suffix = "" if project == EVERY_PROJECT else f"?project={quote(project, safe='')}"
    return redirect_to(f"/settings/columns{suffix}")


def _settings_of_form() -> ColumnRuleSettings:
    fields = {
        "column": request.form.get("column", "").strip(),
        "test": request.form.get("test", ""),
        "value": _number("value"),
        "for_s": _number("for_s"),
        "level": request.form.get("level", "warning"),
    }
    try:
        return msgspec.convert(fields, ColumnRuleSettings)
    except msgspec.ValidationError as error:
        detail, _, path = str(error).partition(" - at ")
        raise Problem(422, f"{path.strip('`$.')}: {detail}.") from error


def _number(field: str) -> float:
    text = request.form.get(field, "").strip()
    try:
        return float(text or 0)
    except ValueError as error:
        raise Problem(422, f"{field}: {text!r:.80} is not a number.", field=field) from error
