"""The API of alerts, rules, the scoreboard, notifications and channels.

The pages share its functions.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, cast, get_args

import msgspec
from flask import Blueprint, Response, request
from msgspec import Meta

from memagent.units import DAY_S
from memagent_server.alerts.memory_rules import OOM_FORECAST
from memagent_server.alerts.rule_config import RuleConfig, configure_rule, read_policy
from memagent_server.alerts.rule_definition import Rule
from memagent_server.alerts.rules import RULES
from memagent_server.http import auth, change_log
from memagent_server.http.api_route import operation
from memagent_server.http.context import current
from memagent_server.http.problems import Problem, json_answer, page_answer
from memagent_server.ingest.body import read_message
from memagent_server.notify import CHANNELS, channels
from memagent_server.notify.channel import DeliveryFailedError
from memagent_server.notify.message_data import send_test
from memagent_server.schemas import alerts as schemas
from memagent_server.schemas.base import JsonObject
from memagent_server.schemas.queries import (
    AlertsQuery,
    NotificationsQuery,
    RulesQuery,
    ScoreboardQuery,
)
from memagent_server.settings import SEVERITIES
from memagent_server.store.alert_accuracy import scoreboard
from memagent_server.store.alerts import describe_alert, list_alerts
from memagent_server.store.engine import Session
from memagent_server.store.incidents import (
    SNOOZE_S,
    IncidentAction,
    IncidentClosedError,
    handle_incident,
    lock_incident,
)
from memagent_server.store.notifications import list_notifications, retry
from memagent_server.store.rules import EVERY_PROJECT, forget_rules, put_rule
from memagent_server.web import query

blueprint = Blueprint("api_alerts", __name__, url_prefix="/api/v1")

ALERT_ACTIONS: tuple[IncidentAction, ...] = get_args(IncidentAction)
_MAX_ID = 2**62


class AlertAction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Who acts on an alert and why. `for_s` is the length of a snooze."""

    by: Annotated[str, Meta(max_length=200)] | None = None
    note: Annotated[str, Meta(max_length=2000)] | None = None
    for_s: Annotated[float, Meta(ge=60, le=30 * DAY_S)] = SNOOZE_S


class RuleSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A project's settings of one rule. Anything left out has the rule's default."""

    is_on: bool = True
    tells: str | None = None
    thresholds: dict[str, float] = {}


def _rule_schema(rule: Rule) -> JsonObject:
    """Return the JSON Schema of one rule's settings, with the bounds of its thresholds."""
    thresholds = {
        item.name: {
            "type": "number",
            "minimum": item.least,
            "maximum": item.most,
            "description": item.about,
        }
        for item in rule.thresholds
    }
    properties = {
        "is_on": {"type": "boolean"},
        "tells": {"enum": [*rule.tells_options, None]},
        "thresholds": {"type": "object", "properties": thresholds, "additionalProperties": False},
    }
    settings = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"description": rule.about, "anyOf": [settings, {"type": "null"}]}


_SettingsByRule = Annotated[
    dict[str, RuleSettings | None],
    Meta(
        extra_json_schema={
            "properties": {name: _rule_schema(rule) for name, rule in RULES.items()},
            "propertyNames": {"enum": list(RULES)},
        }
    ),
]


class RuleChanges(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """New settings by rule. null restores the rule's defaults."""

    rules: _SettingsByRule


# -- alerts --------------------------------------------------------------------------------------


@blueprint.get("/alerts")
@operation("alerts", "read", schemas.AlertPage, query=AlertsQuery)
def get_alerts() -> Response:
    """List alerts, newest first."""
    params = query.read(AlertsQuery)
    with current().database.read() as session:
        page = list_alerts(
            session, state=params.state, run_id=params.run, limit=params.limit, cursor=params.cursor
        )
    return page_answer(page, params.fields)


@blueprint.post("/alerts/<int:alert_id>/<any(ack, snooze, 'false-alarm', undo):action>")
@operation(
    "alerts", "read", schemas.Alert, body=AlertAction, is_body_optional=True, problems=(409,)
)
def post_alert(alert_id: int, action: IncidentAction) -> Response:
    """Acknowledge an alert, snooze it, mark it as a false alarm, or undo all of these.

    This acts on the alert's whole incident. `for_s` is the length of a snooze; 409 if a snoozed
    alert is over.
    """
    details = read_message(request, AlertAction) if request.content_length else AlertAction()
    return json_answer(act_on_alert(alert_id, action, details))


def act_on_alert(
    alert_id: int, action: IncidentAction, details: AlertAction
) -> schemas.Alert | None:
    """Do one of ALERT_ACTIONS to an alert's incident; return the alert.

    Raises Problem 404 or 409.
    """
    access, context = auth.current_access(), current()
    now = context.clock()
    by, note = details.by or (access.name if access is not None else None), details.note
    with context.database.write() as session:
        incident = lock_incident(session, alert_id) if alert_id < _MAX_ID else None
        if incident is None:
            raise Problem(404, f"Unknown alert {alert_id}. Its run may have been deleted.")
        try:
            handle_incident(
                session, incident, action, by=by, note=note, now=now, snooze_s=details.for_s
            )
        except IncidentClosedError as error:
            raise Problem(
                409, f"Alert {alert_id} is over ({error}), so it cannot be snoozed."
            ) from None
        session.flush()
        return describe_alert(session, alert_id)


# -- rules ---------------------------------------------------------------------------------------


@blueprint.get("/rules")
@operation("alerts", "read", schemas.Rules, query=RulesQuery)
def get_rules() -> Response:
    """Return a project's rules and their settings."""
    project = query.read(RulesQuery).project
    with current().database.read() as session:
        return json_answer(_describe_rules(session, project))


@blueprint.put("/rules")
@operation("alerts", "admin", schemas.Rules, query=RulesQuery, body=RuleChanges)
def put_rules() -> Response:
    """Change the rules that are named; null restores the defaults.

    All changes are stored, or none.
    """
    project = query.read(RulesQuery).project
    changes = read_message(request, RuleChanges)
    with current().database.write() as session:
        save_rules(session, project, changes)
        return json_answer(_describe_rules(session, project))


def save_rules(session: Session, project: str, changes: RuleChanges) -> None:
    """Check all changes, then store those that differ from the defaults.

    Raises Problem 403 or 422.
    """
    auth.check_project(project)
    for name, settings in changes.rules.items():
        if name not in RULES:
            raise Problem(
                422,
                f"rules.{name}: unknown rule. Use one of: {', '.join(RULES)}.",
                field=f"rules.{name}",
            )
        if settings is not None:
            _check_settings(RULES[name], settings)
    with change_log.watch(session, partial(_values_of_rules, session, project)):
        _replace_rules(session, project, changes)


def _values_of_rules(session: Session, project: str) -> dict[str, dict[str, object]]:
    return {
        name: {"is_on": config.is_on, "notifies": config.tells, **config.thresholds}
        for name, config in read_policy(session, project).items()
    }


def _replace_rules(session: Session, project: str, changes: RuleChanges) -> None:
    for name in changes.rules:
        forget_rules(session, project, name)
    access, now, inherited = auth.current_access(), current().clock(), read_policy(session, project)
    for name, settings in changes.rules.items():
        if settings is None:
            continue
        config = configure_rule(RULES[name], settings.is_on, settings.tells, settings.thresholds)
        if _differs(config, inherited[name]):
            put_rule(
                session,
                project=project,
                rule=name,
                is_on=config.is_on,
                tells=config.tells,
                thresholds=dict(config.thresholds),
                by=access.name if access is not None else None,
                now=now,
            )


def _differs(config: RuleConfig, inherited: RuleConfig) -> bool:
    return (config.is_on, config.tells, config.thresholds) != (
        inherited.is_on,
        inherited.tells,
        inherited.thresholds,
    )


def _check_settings(rule: Rule, settings: RuleSettings) -> None:
    options = rule.tells_options
    if settings.tells is not None and settings.tells not in options:
        field = f"rules.{rule.name}.tells"
        raise Problem(
            422, f"{field}: {settings.tells!r} is not one of {', '.join(options)}.", field=field
        )
    thresholds = {item.name: item for item in rule.thresholds}
    for name, value in settings.thresholds.items():
        field = f"rules.{rule.name}.thresholds.{name}"
        if name not in thresholds:
            names = f"Use one of: {', '.join(thresholds)}." if thresholds else "The rule has none."
            raise Problem(422, f"{field}: unknown threshold. {names}", field=field)
        least, most = thresholds[name].least, thresholds[name].most
        if not least <= value <= most:
            raise Problem(
                422, f"{field}: {value:g} is not between {least:g} and {most:g}.", field=field
            )


def _describe_rules(session: Session, project: str) -> schemas.Rules:
    policy = read_policy(session, project)
    rules = {name: _describe_rule(config) for name, config in policy.items()}
    return schemas.Rules(project, rules)


def _describe_rule(config: RuleConfig) -> schemas.Rule:
    return schemas.Rule(
        about=config.rule.about,
        is_on=config.is_on,
        tells=cast("schemas.NotifyFrom", config.tells),
        is_default=config.is_default,
        thresholds={
            item.name: schemas.Threshold(
                value=config.thresholds[item.name],
                default=item.default,
                least=item.least,
                most=item.most,
                unit=item.unit,
                about=item.about,
            )
            for item in config.rule.thresholds
        },
    )


# -- scoreboard ----------------------------------------------------------------------------------


@blueprint.get("/scoreboard")
@operation("alerts", "read", schemas.Scoreboard, query=ScoreboardQuery)
def get_scoreboard() -> Response:
    """Return how accurate the warnings were: in total, by project and by cause."""
    params = query.read(ScoreboardQuery)
    return json_answer(read_scoreboard(params.days, params.project))


def read_scoreboard(days: int, project: str | None) -> schemas.Scoreboard:
    context = current()
    with context.database.read() as session:
        policy = read_policy(session, project or EVERY_PROJECT)
        page_cost = policy[OOM_FORECAST.name].thresholds["page_cost"]
        return scoreboard(
            session, now=context.clock(), days=days, project=project, page_cost=page_cost
        )


# -- notifications and channels ------------------------------------------------------------------


@blueprint.get("/notifications")
@operation("notifications", "read", schemas.NotificationPage, query=NotificationsQuery)
def get_notifications() -> Response:
    """List notifications, newest first: sent, waiting and given up."""
    params = query.read(NotificationsQuery)
    with current().database.read() as session:
        page = list_notifications(
            session,
            state=params.state,
            channel=params.channel,
            run_id=params.run,
            limit=params.limit,
            cursor=params.cursor,
        )
    return page_answer(page, params.fields)


@blueprint.post("/notifications/<int:notification_id>/retry")
@operation("notifications", "admin", schemas.RetriedNotification, problems=(409,))
def post_retry(notification_id: int) -> Response:
    """Resend a notification that was given up or skipped; 409 for any other."""
    retry_notification(notification_id)
    return json_answer(schemas.RetriedNotification(notification_id, "waiting"))


def retry_notification(notification_id: int) -> None:
    """Queue a notification again. Raises Problem 404 or 409."""
    context, number = current(), notification_id
    with context.database.write() as session:
        is_queued = retry(session, number) if number < _MAX_ID else None
        if is_queued is None:
            raise Problem(404, f"Unknown notification {number}. Its run may have been deleted.")
        if not is_queued:
            raise Problem(
                409, f"Notification {number} is neither dead nor skipped, so it cannot be retried."
            )


@blueprint.get("/channels")
@operation("notifications", "read", schemas.Channels)
def get_channels() -> Response:
    """List the channels and whether each is configured."""
    return json_answer(schemas.Channels(describe_channels()))


def describe_channels() -> list[schemas.Channel]:
    settings = current().settings
    configured = channels(settings)
    return [
        schemas.Channel(
            channel=name,
            is_set_up=name in configured,
            least_severity=settings.notify_severities.get(name, SEVERITIES[0]),
        )
        for name in known_channels()
    ]


def known_channels() -> tuple[str, ...]:
    """Return the names of all channels, configured or not."""
    return (*CHANNELS, *(item.name for item in current().settings.channels))


@blueprint.post("/channels/<name>/test")
@operation(
    "notifications", "admin", {200: schemas.TestDelivery, 502: schemas.TestDelivery}, of_server=True
)
def post_test(name: str) -> Response:
    """Send a message that's marked as a test; 502 if the channel refuses it."""
    ok, answer = send_test_message(name)
    return json_answer(schemas.TestDelivery(name, ok, answer), 200 if ok else 502)


def send_test_message(name: str) -> tuple[bool, str]:
    """Return whether the channel accepted a test message, and its answer. Raises Problem 404."""
    context = current()
    channel = channels(context.settings).get(name)
    if channel is None:
        detail = (
            f"The channel {name} is not configured: see docs/notifications.md."
            if name in CHANNELS
            else f"Unknown channel {name!r}. Use one of: {', '.join(known_channels())}."
        )
        raise Problem(404, detail)
    try:
        return True, send_test(channel, context.settings.public_url, context.clock())
    except DeliveryFailedError as error:
        return False, str(error)
