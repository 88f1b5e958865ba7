"""The API and the form of schedules: quiet hours and digests of channels."""

from __future__ import annotations

from functools import partial
from zoneinfo import available_timezones

import msgspec
from flask import Blueprint, Response, request

from memagent_server.http import change_log
from memagent_server.http.api_route import operation, require_scope
from memagent_server.http.context import current
from memagent_server.http.problems import Problem, json_answer
from memagent_server.ingest.body import read_message
from memagent_server.notify import channels
from memagent_server.schemas.schedules import WEEKDAYS, ChannelSchedule, ScheduleChanges, Schedules
from memagent_server.store.engine import Session
from memagent_server.store.schedules import held_counts, list_digests, list_schedules, put_schedule
from memagent_server.web.rendering import redirect_to

blueprint = Blueprint("schedules", __name__)


@blueprint.get("/api/v1/schedules")
@operation("notifications", "admin", Schedules, of_server=True)
def get_schedules() -> Response:
    """Return the channels' quiet hours and digests."""
    with current().database.read() as session:
        return json_answer(describe_schedules(session))


@blueprint.put("/api/v1/schedules")
@operation("notifications", "admin", Schedules, of_server=True, body=ScheduleChanges)
def put_schedules() -> Response:
    """Replace the schedules of the channels that are named; null removes one.

    All changes are stored, or none.
    """
    save_schedules(read_message(request, ScheduleChanges))
    with current().database.read() as session:
        return json_answer(describe_schedules(session))


def save_schedules(changes: ScheduleChanges) -> None:
    """Check and store schedules. Raises Problem 422."""
    for channel, schedule in changes.schedules.items():
        if schedule is not None:
            _check(channel, schedule)
    context = current()
    with (
        context.database.write() as session,
        change_log.watch(session, partial(list_schedules, session)),
    ):
        for channel, schedule in changes.schedules.items():
            put_schedule(session, channel, schedule, context.clock())


def describe_schedules(session: Session) -> Schedules:
    now = current().clock()
    return Schedules(list_schedules(session), list_digests(session), held_counts(session, now))


def _check(name: str, schedule: ChannelSchedule) -> None:
    field = f"schedules.{name}"
    channel = channels(current().settings).get(name)
    if channel is None:
        raise Problem(422, f"{field}: {name!r:.60} is not a configured channel.", field=field)
    if schedule.time_zone not in available_timezones():
        detail = f"{schedule.time_zone!r:.60} is not a time zone, such as Europe/Berlin or UTC."
        raise Problem(422, f"{field}.time_zone: {detail}", field=f"{field}.time_zone")
    if (schedule.quiet_from is None) != (schedule.quiet_to is None):
        detail = "quiet hours need both quiet_from and quiet_to."
        raise Problem(422, f"{field}.quiet_to: {detail}", field=f"{field}.quiet_to")
    if schedule.quiet_from is not None and schedule.quiet_from == schedule.quiet_to:
        detail = "quiet hours need two different times."
        raise Problem(422, f"{field}.quiet_to: {detail}", field=f"{field}.quiet_to")
    if len(set(schedule.quiet_days)) == len(WEEKDAYS):
        detail = "all days are quiet: leave one, or route nothing to the channel."
        raise Problem(422, f"{field}.quiet_days: {detail}", field=f"{field}.quiet_days")
    if not channel.takes_digests and (schedule.daily or schedule.waste_day):
        detail = "this service keeps incidents, and takes no digests."
        raise Problem(422, f"{field}.daily: {detail}", field=f"{field}.daily")


@blueprint.post("/settings/schedules")
@require_scope("admin", of_server=True)
def change_schedules() -> Response:
    """Save the schedule of the form's channel, or remove the one that `remove` names."""
    form = request.form
    # the button of a row posts nothing else
    if removed := form.get("remove"):
        save_schedules(ScheduleChanges(schedules={removed[:40]: None}))
        return redirect_to("/settings/routing#schedules")
    fields = {
        "time_zone": form.get("time_zone", "").strip() or "UTC",
        "quiet_from": form.get("quiet_from") or None,
        "quiet_to": form.get("quiet_to") or None,
        "quiet_days": form.getlist("quiet_days"),
        "digest_at": form.get("digest_at") or "08:00",
        "daily": form.get("daily") == "on",
        "waste_day": form.get("waste_day") or None,
        "projects": [part.strip() for part in form.get("projects", "").split(",") if part.strip()],
    }
    try:
        schedule = msgspec.convert(fields, ChannelSchedule)
    except msgspec.ValidationError as error:
        detail, _, path = str(error).partition(" - at ")
        raise Problem(422, f"{path.strip('`$.')}: {detail}.") from error
    save_schedules(ScheduleChanges(schedules={form.get("channel", "")[:40]: schedule}))
    return redirect_to("/settings/routing#schedules")
