"""The API and the page of routes: which channel gets which notification."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import msgspec
from flask import Blueprint, Response, request

from memagent.units import DAY_S
from memagent_server.alerts.routing import (
    RoutedMessage,
    hidden_routes,
    lost_severities,
    others,
    preview,
    subject_of,
)
from memagent_server.alerts.rules import RULES
from memagent_server.http import change_log
from memagent_server.http.api_route import operation, require_scope
from memagent_server.http.context import current
from memagent_server.http.problems import Problem, json_answer
from memagent_server.ingest.body import read_message
from memagent_server.notify import channels
from memagent_server.schemas.queries import PreviewQuery
from memagent_server.schemas.routing import MAX_ROUTES, Route, RouteChanges, Routes, RoutingPreview
from memagent_server.schemas.schedules import WEEKDAYS
from memagent_server.settings import SEVERITIES
from memagent_server.store.engine import Session
from memagent_server.store.routes import list_routes, lock_routes, replace_routes, sent_since
from memagent_server.web import query
from memagent_server.web.api_alerts import known_channels
from memagent_server.web.api_schedules import describe_schedules
from memagent_server.web.rendering import redirect_to, render_page

blueprint = Blueprint("routes", __name__)

MAX_PREVIEWED = 5_000
"""Messages of a preview: it reads each with its run, in about a second."""
PREVIEW_DAYS = 7
_LISTS = ("projects", "users", "tags", "rules")


@blueprint.get("/api/v1/routes")
@operation("notifications", "admin", Routes, of_server=True)
def get_routes() -> Response:
    """Return the routes in the order in which they are tried."""
    with current().database.read() as session:
        return json_answer(_describe(list_routes(session)))


@blueprint.put("/api/v1/routes")
@operation("notifications", "admin", Routes, of_server=True, body=RouteChanges)
def put_routes() -> Response:
    """Replace all routes; [] sends everything to every channel."""
    routes = read_message(request, RouteChanges).routes
    check_routes(routes)
    with current().database.write() as session:
        _store(session, routes)
    return json_answer(_describe(routes))


@blueprint.post("/api/v1/routes/preview")
@operation(
    "notifications", "admin", RoutingPreview, of_server=True, query=PreviewQuery, body=RouteChanges
)
def post_preview() -> Response:
    """Return what these routes would have made of the last days' messages. Stores nothing."""
    days = query.read(PreviewQuery).days
    routes = read_message(request, RouteChanges).routes
    check_routes(routes)
    with current().database.read() as session:
        return json_answer(_preview(session, routes, days))


def check_routes(routes: Sequence[Route]) -> None:
    """Check that names differ, and that channels and rules exist. Raises Problem 422."""
    names = [route.name for route in routes]
    for number, route in enumerate(routes):
        field = f"routes.{number}"
        if names.index(route.name) != number:
            detail = f"{route.name!r} is the name of two routes: use another."
            raise Problem(422, f"{field}.name: {detail}", field=f"{field}.name")
        for what, values, known in (
            ("channels", route.channels, known_channels()),
            ("rules", route.rules, tuple(RULES)),
        ):
            for value in values:
                if value not in known:
                    detail = f"{value!r:.60} is not one of {', '.join(known)}."
                    raise Problem(422, f"{field}.{what}: {detail}", field=f"{field}.{what}")


def _store(session: Session, routes: Sequence[Route]) -> None:
    lock_routes(session)
    with change_log.watch(session, partial(list_routes, session)):
        replace_routes(session, routes)


def _describe(routes: list[Route]) -> Routes:
    configured = list(channels(current().settings))
    return Routes(routes, configured, list(others(routes, configured)))


def _preview(session: Session, routes: Sequence[Route], days: int) -> RoutingPreview:
    context = current()
    # one more than is shown says whether there are more
    rows = sent_since(session, context.clock() - days * DAY_S, MAX_PREVIEWED + 1)
    messages = [
        RoutedMessage(subject_of(run, alert, transition), alert.incident_id, receivers)
        for transition, alert, run, receivers in rows[-MAX_PREVIEWED:]
    ]
    counts, unrouted = preview(routes, messages, list(channels(context.settings)))
    is_cut = len(rows) > MAX_PREVIEWED
    return RoutingPreview(days, len(messages), unrouted, is_cut, counts)


# -- the page ------------------------------------------------------------------------------------


@blueprint.get("/settings/routing")
@require_scope("admin", of_server=True)
def show_routing() -> Response:
    """Show routes and schedules; `route` and `channel` name those that the forms edit."""
    name, channel = query.text("route"), query.text("channel")
    with current().database.read() as session:
        routes = list_routes(session)
        answer = _describe(routes)
        past = _preview(session, routes, PREVIEW_DAYS)
        schedules = describe_schedules(session)
        return render_page(
            "routing.html",
            session,
            routes=routes,
            edited=next((route for route in routes if route.name == name), None),
            configured=answer.channels,
            known=known_channels(),
            others=answer.others,
            hidden=hidden_routes(routes),
            lost=lost_severities(routes, answer.channels),
            rules=list(RULES),
            severities=SEVERITIES,
            preview=past,
            schedules=schedules,
            channel=channel,
            planned=schedules.schedules.get(channel or ""),
            weekdays=WEEKDAYS,
            by_route=sum((Counter(item.by_route) for item in past.channels), Counter[str]()),
        )


@blueprint.post("/settings/routing")
@require_scope("admin", of_server=True)
def change_routing() -> Response:
    """Save the route of the form in place of `route`, or move or remove that one by `what`."""
    form = request.form
    what, name = form.get("what", "save"), form.get("route", "")
    with current().database.write() as session:
        # two people who press buttons at once would else undo each other's change
        lock_routes(session)
        routes = list_routes(session)
        names = [route.name for route in routes]
        if name and name not in names:
            raise Problem(404, f"Unknown route {name!r:.100}: it was changed meanwhile.")
        place = names.index(name) if name else len(routes)
        changed = _changed(routes, place, what)
        check_routes(changed)
        _store(session, changed)
    return redirect_to("/settings/routing")


def _changed(routes: Sequence[Route], place: int, what: str) -> list[Route]:
    """Return the routes after a button of the page, pressed for the one at `place`."""
    result = list(routes)
    if what == "save":
        if place == MAX_ROUTES:
            raise Problem(422, f"There are {MAX_ROUTES} routes: remove one first.", field="name")
        return [*result[:place], _route_of_form(), *result[place + 1 :]]
    if what not in ("remove", "up", "down") or place == len(result):
        raise Problem(422, "what: use save, or with a route remove, up or down.", field="what")
    route = result.pop(place)
    if what == "remove":
        return result
    result.insert(max(0, place + (1 if what == "down" else -1)), route)
    return result


def _route_of_form() -> Route:
    form = request.form
    fields: dict[str, object] = {
        "name": form.get("name", "").strip(),
        "severity": form.get("severity", SEVERITIES[0]),
        "channels": form.getlist("channels"),
        "goes_on": form.get("goes_on") == "on",
        **{
            name: [part.strip() for part in form.get(name, "").split(",") if part.strip()]
            for name in _LISTS
        },
    }
    try:
        return msgspec.convert(fields, Route)
    except msgspec.ValidationError as error:
        detail, _, path = str(error).partition(" - at ")
        raise Problem(422, f"{path.strip('`$.')}: {detail}.") from error
