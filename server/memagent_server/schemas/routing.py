"""Routes of notifications as the API takes and returns them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from memagent_server.schemas.base import Schema
from memagent_server.settings import Severity

MAX_ROUTES = 200
"""All are tried for each notification."""
MAX_PATTERNS = 50
TEXT = r"^[^\x00-\x1f\x7f]+$"
"""No letter that controls: patterns are shown on a page, a line each."""

Pattern = Annotated[str, Meta(min_length=1, max_length=200, pattern=TEXT)]
Patterns = Annotated[tuple[Pattern, ...], Meta(max_length=MAX_PATTERNS)]


class Route(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Decide where some notifications go. Empty lists match everything, `*` any part of a name.

    - severity: the lowest that matches.
    - channels: none drops the notification.
    - goes_on: later routes add their channels.
    """

    name: Annotated[str, Meta(min_length=1, max_length=100, pattern=TEXT)]
    projects: Patterns = ()
    users: Patterns = ()
    tags: Patterns = ()
    rules: Patterns = ()
    severity: Severity = "note"
    channels: Patterns = ()
    goes_on: bool = False


class RouteChanges(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """All routes, in the order in which they are tried."""

    routes: Annotated[list[Route], Meta(max_length=MAX_ROUTES)]


class Routes(Schema):
    """The stored routes, the configured channels, and those that get what no route decides."""

    routes: list[Route]
    channels: list[str]
    others: list[str]


class RoutedChannel(Schema):
    """Messages to a channel: as they were sent, and as the routes would have it."""

    channel: str
    is_set_up: bool
    delivered: int
    routed: int
    by_route: dict[str, int]


class RoutingPreview(Schema):
    """Past messages of some days, as the routes would have sent them.

    - unrouted: messages that no channel would have got.
    - is_cut: True if there were more messages than are counted.
    """

    days: int
    messages: int
    unrouted: int
    is_cut: bool
    channels: list[RoutedChannel]
