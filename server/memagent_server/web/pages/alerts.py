"""What people and programs do about alerts: list them, say something of them, set the rules, see how good the warnings were."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from flask import Blueprint, Response, redirect, request
from msgspec import Meta
from sqlalchemy.orm import Session

from memagent.units import DAY_S
from memagent_server.alerts.rule_config import RuleConfig, read_policy, wanted
from memagent_server.alerts.rules import RULES, TELLS, Rule, Threshold
from memagent_server.http import auth
from memagent_server.http.api_route import operation
from memagent_server.http.context import current
from memagent_server.http.permissions import permit
from memagent_server.http.problems import Problem
from memagent_server.http.responses import json_answer, only, page_answer
from memagent_server.ingest.body import read_message
from memagent_server.schemas import alerts as shapes
from memagent_server.schemas.queries import AlertsQuery, RulesQuery, ScoreboardQuery
from memagent_server.store.alert_accuracy import scoreboard
from memagent_server.store.alerts import describe_alert, list_alerts, list_incidents
from memagent_server.store.incidents import acknowledge, incident_of, mark_false, snooze
from memagent_server.store.models import ALERT_STATES, Incident
from memagent_server.store.rules import EVERY_PROJECT, forget_rules, known_projects, put_rule
from memagent_server.web import query
from memagent_server.web.pages.login import safe_target
from memagent_server.web.pages.runs import REFRESH_S, answer_page, shared_facts

blueprint = Blueprint("alerting", __name__)

_V1 = "/api/v1"
STATES = ("open", *ALERT_STATES)
ON_A_PAGE = 50
SNOOZE_S = 3600.0
DAYS = 90
MIB = 2**20


class Said(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What somebody says of an alert. `for_s` is for a snooze."""

    by: Annotated[str, Meta(max_length=200)] | None = None
    note: Annotated[str, Meta(max_length=2000)] | None = None
    for_s: Annotated[float, Meta(ge=60, le=30 * DAY_S)] = SNOOZE_S


class RuleWish(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a project wants a rule. What is left out is the rule's own default."""

    is_on: bool = True
    tells: str | None = None
    thresholds: dict[str, float] = {}


def _wish_schema(rule: Rule) -> dict[str, Any]:
    """What may be wished of a rule, for the document."""
    thresholds = {
        item.name: {
            "type": "number",
            "minimum": item.least,
            "maximum": item.most,
            "description": item.about,
        }
        for item in rule.thresholds
    }
    wish = {
        "is_on": {"type": "boolean"}, "tells": {"enum": [*TELLS, None]},
        "thresholds": {"type": "object", "properties": thresholds, "additionalProperties": False},
    }  # fmt: skip
    wanted = {"type": "object", "properties": wish, "additionalProperties": False}
    return {"description": rule.about, "anyOf": [wanted, {"type": "null"}]}


_Wishes = Annotated[
    dict[str, RuleWish | None],
    Meta(
        extra_json_schema={
            "properties": {name: _wish_schema(rule) for name, rule in RULES.items()},
            "propertyNames": {"enum": list(RULES)},
        }
    ),
]


class RuleWishes(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """{rule: how it is wanted}; null goes back to the defaults."""

    rules: _Wishes


# -- alerts ------------------------------------------------------------------------------------------------------------


@blueprint.get(f"{_V1}/alerts")
@operation("alerts", "read", shapes.AlertPage, query=AlertsQuery)
def get_alerts() -> Response:
    """Alerts, the newest first."""
    asked = query.read(AlertsQuery)
    with current().database.read() as session:
        found = list_alerts(
            session, state=asked.state, run_id=asked.run, limit=asked.limit, cursor=asked.cursor
        )
    return page_answer(
        {**found, "alerts": [only(alert, asked.fields) for alert in found["alerts"]]}
    )


@blueprint.get("/alerts")
def show_alerts() -> Response:
    with current().database.read() as session:
        found = list_incidents(
            session, state=query.choice("state", STATES), run_id=query.text("run"), limit=ON_A_PAGE, cursor=query.text("cursor")
        )  # fmt: skip
        shared = shared_facts(session)
    return answer_page(
        "alerts.html", **shared, incidents=found["incidents"], next_cursor=found["next_cursor"], state=query.text("state"),
        states=STATES, refresh_s=REFRESH_S,
    )  # fmt: skip


@blueprint.post(f"{_V1}/alerts/<int:alert_id>/<any(ack, snooze, 'false-alarm'):what>")
@operation("alerts", "read", shapes.AlertFacts, body=Said, is_body_optional=True, problems=(409,))
def post_said(alert_id: int, what: str) -> Response:
    """Say of an alert that somebody has seen it, that it can wait, or that nothing was wrong.

    It acts on the alert's incident. `for_s` is for a snooze, which is 409 once the alert is over.
    """
    said = read_message(request, Said) if request.content_length else Said()
    return json_answer(_say(alert_id, what, said))


@blueprint.post("/alerts/<int:alert_id>/say")
@permit("read")
def say(alert_id: int) -> Response:
    what = request.form.get("what", "")
    if what not in _SAYINGS:
        raise Problem(422, f"what: {what!r} is none of {', '.join(_SAYINGS)}", field="what")
    _say(alert_id, what, Said())
    return _go(request.form.get("next") or "/alerts")


def _acknowledge(session: Session, incident: Incident, said: Said, now: float) -> None:
    acknowledge(session, incident, by=said.by, note=said.note, now=now)


def _snooze(session: Session, incident: Incident, said: Said, now: float) -> None:
    snooze(session, incident, until=now + said.for_s, by=said.by, note=said.note, now=now)


def _mark_false(session: Session, incident: Incident, said: Said, now: float) -> None:
    mark_false(session, incident, by=said.by, note=said.note, now=now)


_SAYINGS = {"ack": _acknowledge, "snooze": _snooze, "false-alarm": _mark_false}


def _say(alert_id: int, what: str, said: Said) -> dict[str, Any]:
    access, context = auth.who(), current()
    said.by = said.by or (access.name if access is not None else None)
    with context.database.write() as session:
        incident = incident_of(session, alert_id) if alert_id < 2**62 else None
        if incident is None:
            raise Problem(404, f"no alert {alert_id} is known; its run may have been deleted")
        if what == "snooze" and incident.closed_at is not None:
            raise Problem(
                409, f"alert {alert_id} is over ({incident.state}): there is nothing to snooze"
            )
        _SAYINGS[what](session, incident, said, context.clock())
        session.flush()
        return describe_alert(session, alert_id) or {}


# -- rules -------------------------------------------------------------------------------------------------------------


@blueprint.get(f"{_V1}/rules")
@operation("alerts", "read", shapes.Rules, query=RulesQuery)
def get_rules() -> Response:
    """How a project wants its rules."""
    project = query.read(RulesQuery).project
    with current().database.read() as session:
        return json_answer(_rules(session, project))


@blueprint.put(f"{_V1}/rules")
@operation("alerts", "admin", shapes.Rules, query=RulesQuery, body=RuleWishes)
def put_rules() -> Response:
    """Change the rules that are named; null is the default again. All or nothing is kept."""
    project = query.read(RulesQuery).project
    wishes = read_message(request, RuleWishes)
    with current().database.write() as session:
        _keep(session, project, wishes)
        return json_answer(_rules(session, project))


@blueprint.get("/settings")
def show_settings() -> Response:
    project = query.text("project") or EVERY_PROJECT
    with current().database.read() as session:
        policy, projects = read_policy(session, project), known_projects(session)
        shared = shared_facts(session)
    return answer_page(
        "settings.html", **shared, project=project, projects=projects, every=EVERY_PROJECT, rules=list(policy.values()), tells=TELLS,
        shown=shown_number, unit_of=shown_unit,
    )  # fmt: skip


@blueprint.post("/settings")
@permit("admin")
def save_settings() -> Response:
    project = request.form.get("project") or EVERY_PROJECT
    if len(project) > 200 or "\0" in project:
        raise Problem(
            422, "project: more than 200 characters, or a NUL among them", field="project"
        )
    is_reset = request.form.get("what") == "reset"
    wishes = RuleWishes(
        rules={name: None if is_reset else _from_form(rule) for name, rule in RULES.items()}
    )
    with current().database.write() as session:
        _keep(session, project, wishes)
    return _go(
        "/settings" if project == EVERY_PROJECT else f"/settings?project={quote(project, safe='')}"
    )


def shown_number(item: Threshold, value: float) -> str:
    """A threshold as the settings page has it: bytes in MiB, shares in per cent, whole numbers without a point."""
    return f"{value * _shown_as(item)[1]:g}"


def shown_unit(item: Threshold) -> str:
    return _shown_as(item)[0]


def _shown_as(item: Threshold) -> tuple[str, float]:
    """The unit that people read a threshold in, and how many of it a 1 is. A ratio of at most 1 is a share."""
    if item.unit == "ratio":
        return ("%", 100) if item.most <= 1 else ("×", 1)
    return {"bytes": ("MiB", 1 / MIB), "s": ("s", 1)}[item.unit]


def _from_form(rule: Rule) -> RuleWish:
    thresholds = {}
    for item in rule.thresholds:
        text = request.form.get(f"{rule.name}.{item.name}", "").strip()
        if text:
            try:
                thresholds[item.name] = float(text) / _shown_as(item)[1]
            except ValueError as error:
                raise Problem(
                    422, f"{rule.name}.{item.name}: {text!r} is no number", field=item.name
                ) from error
    is_on = request.form.get(f"{rule.name}.is_on") == "on"
    return RuleWish(
        is_on=is_on, tells=request.form.get(f"{rule.name}.tells"), thresholds=thresholds
    )


def _keep(session: Session, project: str, wishes: RuleWishes) -> None:
    """Check all of them, then keep those that change anything. Raises Problem 403 or 422."""
    auth.check_project(project)
    for name, wish in wishes.rules.items():
        if name not in RULES:
            raise Problem(
                422,
                f"rules.{name}: there is no such rule; there are {', '.join(RULES)}",
                field=f"rules.{name}",
            )
        if wish is not None:
            _check(RULES[name], wish)
    for name in wishes.rules:
        forget_rules(session, project, name)
    access, now, without = auth.who(), current().clock(), read_policy(session, project)
    for name, wish in wishes.rules.items():
        if wish is None:
            continue
        rule = RULES[name]
        asked = wanted(rule, wish.is_on, wish.tells, wish.thresholds)
        if (asked.is_on, asked.tells, asked.thresholds) != (
            without[name].is_on,
            without[name].tells,
            without[name].thresholds,
        ):
            put_rule(
                session, project=project, rule=name, is_on=asked.is_on, tells=asked.tells, thresholds=dict(asked.thresholds),
                by=access.name if access is not None else None, now=now,
            )  # fmt: skip


def _check(rule: Rule, wish: RuleWish) -> None:
    if wish.tells is not None and wish.tells not in TELLS:
        field = f"rules.{rule.name}.tells"
        raise Problem(422, f"{field}: {wish.tells!r} is none of {', '.join(TELLS)}", field=field)
    known = {item.name: item for item in rule.thresholds}
    for name, value in wish.thresholds.items():
        field = f"rules.{rule.name}.thresholds.{name}"
        if name not in known:
            raise Problem(
                422,
                f"{field}: there is no such threshold; there are {', '.join(known) or 'none'}",
                field=field,
            )
        if not known[name].least <= value <= known[name].most:
            raise Problem(
                422,
                f"{field}: {value:g} is not from {known[name].least:g} to {known[name].most:g}",
                field=field,
            )


def _rules(session: Session, project: str) -> dict[str, Any]:
    return {
        "project": project,
        "rules": {name: _described(item) for name, item in read_policy(session, project).items()},
    }


def _described(how: RuleConfig) -> dict[str, Any]:
    thresholds = {
        item.name: {
            "value": how.thresholds[item.name], "default": item.default, "least": item.least, "most": item.most, "unit": item.unit,
            "about": item.about,
        }
        for item in how.rule.thresholds
    }  # fmt: skip
    return {
        "about": how.rule.about, "is_on": how.is_on, "tells": how.tells, "is_default": how.is_default,
        "thresholds": thresholds,
    }  # fmt: skip


# -- scoreboard --------------------------------------------------------------------------------------------------------


@blueprint.get(f"{_V1}/scoreboard")
@operation("alerts", "read", shapes.Scoreboard, query=ScoreboardQuery)
def get_scoreboard() -> Response:
    """How good the warnings were, in all, by project and by cause."""
    asked = query.read(ScoreboardQuery)
    return json_answer(_scores(asked.days, asked.project))


@blueprint.get("/alerts/scoreboard")
def show_scoreboard() -> Response:
    scores = _scores(query.number("days", least=1, most=3650) or DAYS, query.text("project"))
    with current().database.read() as session:
        shared = shared_facts(session)
    return answer_page("scoreboard.html", **shared, scores=scores)


def _scores(days: int, project: str | None) -> dict[str, Any]:
    context = current()
    with context.database.read() as session:
        return {
            "days": days,
            "project": project,
            **scoreboard(session, since=context.clock() - days * DAY_S, project=project),
        }


def _go(target: str) -> Response:
    response = redirect(safe_target(target), 303)
    return Response(response.get_data(), response.status_code, response.headers)
