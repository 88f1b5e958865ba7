"""Routing: which channels a notification goes to, by project, user, tag, rule and severity. Pure.

1. Routes are tried in their order. One that matches adds its channels, and ends the search unless
   it goes on.
2. If the search doesn't end, the channels that no route names get the notification as well.
   Without routes that's every channel.
3. The good end of an incident goes to the channels that were notified of it, a death to those and
   to its own.
4. Channels that aren't configured get nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain

from memagent_server.alerts.event_rules import MILESTONES
from memagent_server.schemas.routing import Route, RoutedChannel
from memagent_server.settings import SEVERITIES
from memagent_server.store.models import AlertRow, RunRow, TransitionRow

GOOD_ENDS = ("averted", "finished")
DEATHS = ("oom", "lost_contact")
OTHERS = ""
"""Name of the last route: everything that no route has decided."""
_UNNAMED = "\0"
"""No project, user, tag or rule has this name."""
_LITERAL = str.maketrans({"[": "[[]", "?": "[?]"})


@dataclass(frozen=True)
class Subject:
    """The run and the incident that a notification is about."""

    project: str
    user: str | None
    tags: tuple[str, ...]
    rule: str
    severity: str
    state: str = "firing"


@dataclass(frozen=True)
class RoutedMessage:
    """A message that was sent: its subject, its incident, and its channels then."""

    subject: Subject
    incident_id: int | None
    channels: tuple[str, ...]


def subject_of(run: RunRow, alert: AlertRow, transition: TransitionRow) -> Subject:
    """Return what a transition's notification is about. A death is critical, warned of or not."""
    return Subject(
        run.project,
        run.user,
        tuple(map(str, run.tags)),
        alert.rule,
        "critical" if transition.to_state in DEATHS else transition.severity,
        transition.to_state,
    )


def matches(route: Route, subject: Subject) -> bool:
    """Return True if a route is about a subject."""
    return (
        SEVERITIES.index(subject.severity) >= SEVERITIES.index(route.severity)
        and fits_any((subject.project,), route.projects)
        and fits_any((subject.user or "",), route.users)
        and fits_any(subject.tags, route.tags)
        and fits_any((subject.rule,), route.rules)
    )


def others(routes: Iterable[Route], channels: Collection[str]) -> tuple[str, ...]:
    """Return the channels that no route names (2)."""
    named = {channel for route in routes for channel in route.channels}
    return tuple(channel for channel in channels if channel not in named)


def hidden_routes(routes: Sequence[Route]) -> dict[str, str]:
    """Return the routes that no message reaches, each with one before it that decides them all."""
    ends = [route for route in routes if not route.goes_on]
    return {
        route.name: before.name
        for place, route in enumerate(routes)
        for before in reversed(ends)
        if before in routes[:place] and _covers(before, route)
    }


def lost_severities(routes: Sequence[Route], channels: Collection[str]) -> list[str]:
    """Return the severities of which routes drop each message that no route names anything of."""
    if not channels:
        return []
    unnamed = (Subject(_UNNAMED, _UNNAMED, (_UNNAMED,), _UNNAMED, name) for name in SEVERITIES)
    return [subject.severity for subject in unnamed if not receivers(routes, subject, channels)]


def _covers(route: Route, other: Route) -> bool:
    """Return True if a route matches whatever another one does, by the text of their patterns."""
    return SEVERITIES.index(route.severity) <= SEVERITIES.index(other.severity) and all(
        not own or (named and set(named) <= set(own))
        for own, named in (
            (route.projects, other.projects),
            (route.users, other.users),
            (route.tags, other.tags),
            (route.rules, other.rules),
        )
    )


def projects_of(channel: str, routes: Iterable[Route]) -> tuple[str, ...]:
    """Return the patterns of the projects that a channel is notified of, none for all."""
    own = [route.projects for route in routes if channel in route.channels]
    return tuple(dict.fromkeys(chain(*own))) if all(own) else ()


def receivers(
    routes: Sequence[Route],
    subject: Subject,
    channels: Collection[str],
    notified: Collection[str] = (),
) -> dict[str, str]:
    """Return {channel: name of its route} for a notification; OTHERS names the last route.

    `channels` are the configured ones, `notified` those that were notified of the incident before.
    """
    # by the routes of today, an end might go to people who never heard of a start
    if subject.state in GOOD_ENDS and subject.rule not in MILESTONES:
        return {channel: OTHERS for channel in channels if channel in notified}
    result = _routed(routes, subject, channels)
    if subject.state in DEATHS:
        result = {**dict.fromkeys(notified, OTHERS), **result}
    # in the order of the settings, and without channels that have left them
    return {channel: result[channel] for channel in channels if channel in result}


def preview(
    routes: Sequence[Route], messages: Iterable[RoutedMessage], channels: Sequence[str]
) -> tuple[list[RoutedChannel], int]:
    """Return what each channel would have got of past messages, and how many would be lost.

    `messages` are in the order in which they were sent.
    """
    notified: dict[int | None, set[str]] = {}
    deliveries: Counter[str] = Counter()
    routed: dict[str, Counter[str]] = {channel: Counter() for channel in channels}
    unrouted = 0
    for message in messages:
        deliveries.update(message.channels)
        before = notified.setdefault(message.incident_id, set())
        result = receivers(routes, message.subject, channels, before)
        before.update(result)
        unrouted += not result
        for channel, name in result.items():
            routed[channel][name] += 1
    # channels that were notified and are no longer configured come last
    names = [*channels, *sorted(set(deliveries) - set(channels))]
    counts = [
        RoutedChannel(
            name,
            name in routed,
            deliveries[name],
            routed.get(name, Counter()).total(),
            dict(routed.get(name, {})),
        )
        for name in names
    ]
    return counts, unrouted


def _routed(routes: Sequence[Route], subject: Subject, channels: Collection[str]) -> dict[str, str]:
    result: dict[str, str] = {}
    for route in routes:
        if matches(route, subject):
            result = {**dict.fromkeys(route.channels, route.name), **result}
            if not route.goes_on:
                return result
    return {**dict.fromkeys(others(routes, channels), OTHERS), **result}


def fits_any(values: Iterable[str], patterns: Sequence[str]) -> bool:
    """Return True if a value fits a pattern (`*` is any text), or if there are no patterns."""
    # project names have brackets: only the asterisk is special
    literal = [pattern.translate(_LITERAL) for pattern in patterns]
    return not patterns or any(fnmatchcase(value, item) for value in values for item in literal)
