"""Routing: which channels get a notification. Tests are named after the numbers of the module."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memagent_server.alerts.routing import (
    RoutedMessage,
    Subject,
    hidden_routes,
    lost_severities,
    matches,
    preview,
    receivers,
)
from memagent_server.schemas.routing import Route
from memagent_server.settings import SEVERITIES
from memagent_server.store.routes import list_routes, replace_routes
from tests.server.alerts.test_incident_updates import Job, leak

ALL = ("slack", "mail", "pager")
LEAK = Subject("vision", "ana", ("prod", "vit"), "oom_forecast", "warning")
VISION = Route(name="vision", projects=("vision",), channels=("slack",))
PAGER = Route(name="on call", severity="critical", channels=("pager",), goes_on=True)


@pytest.mark.parametrize(
    ("conditions", "is_match"),
    [
        ({}, True),
        ({"projects": ("nlp", "vis*")}, True),
        ({"projects": ("vis",)}, False),
        ({"projects": ("Vision",)}, False),
        ({"projects": ("vi?ion",)}, False),
        ({"users": ("ana",)}, True),
        ({"users": ("bo",)}, False),
        ({"tags": ("prod",)}, True),
        ({"tags": ("p",)}, False),
        ({"rules": ("oom_forecast", "oom")}, True),
        ({"rules": ("oom",)}, False),
        ({"severity": "warning"}, True),
        ({"severity": "critical"}, False),
        ({"projects": ("vision",), "users": ("bo",)}, False),
    ],
)
def test_a_route_matches_if_all_of_its_conditions_do(conditions, is_match):
    assert matches(Route(name="r", **conditions), LEAK) is is_match


def test_only_the_asterisk_is_special():
    odd = replace(LEAK, project="a[1]?", user=None)
    assert matches(Route(name="r", projects=("a[1]?",)), odd)
    assert matches(Route(name="r", projects=("*]?",)), odd)
    assert not matches(Route(name="r", projects=("a[1]*",)), replace(odd, project="a1x"))
    assert not matches(Route(name="r", users=("ana",)), odd)


def test_1_the_first_match_decides_unless_it_goes_on():
    routes = [VISION, Route(name="rest", channels=("mail",))]
    assert receivers(routes, LEAK, ALL) == {"slack": "vision"}
    assert receivers(routes, replace(LEAK, project="nlp"), ALL) == {"mail": "rest"}
    critical = replace(LEAK, severity="critical")
    assert receivers([PAGER, *routes], critical, ALL) == {"slack": "vision", "pager": "on call"}
    assert receivers([PAGER, *routes], LEAK, ALL) == {"slack": "vision"}
    assert receivers([Route(name="muted", users=("ana",)), *routes], LEAK, ALL) == {}


def test_2_what_no_route_decides_goes_to_the_channels_that_none_names():
    assert receivers([], LEAK, ALL) == dict.fromkeys(ALL, "")
    nlp = replace(LEAK, project="nlp")
    assert receivers([VISION], nlp, ALL) == {"mail": "", "pager": ""}
    critical = replace(nlp, severity="critical")
    assert receivers([PAGER, VISION], critical, ALL) == {"mail": "", "pager": "on call"}


def test_3_an_end_goes_to_those_who_were_told_and_a_death_to_its_own_as_well():
    for state in ("averted", "finished"):
        ended = replace(LEAK, state=state)
        assert receivers([VISION], ended, ALL, {"mail"}) == {"mail": ""}
        assert receivers([VISION], ended, ALL, ()) == {}
    for state in ("oom", "lost_contact"):
        died = replace(LEAK, state=state)
        assert receivers([VISION], died, ALL, {"mail"}) == {"slack": "vision", "mail": ""}


def test_4_a_channel_that_is_not_configured_gets_nothing():
    assert receivers([VISION], LEAK, ("mail",)) == {}
    assert receivers([], replace(LEAK, state="averted"), ("mail",), {"slack", "mail"}) == {
        "mail": ""
    }


def test_a_preview_counts_what_each_channel_would_have_got():
    start = RoutedMessage(LEAK, 1, ("slack", "mail"))
    end = RoutedMessage(replace(LEAK, state="averted"), 1, ("slack", "mail"))
    other = RoutedMessage(replace(LEAK, project="nlp"), 2, ("fax",))
    counts, unrouted = preview([VISION], [start, end, other], ("slack",))
    assert unrouted == 1
    assert [(item.channel, item.is_set_up, item.delivered, item.routed) for item in counts] == [
        ("slack", True, 2, 2),
        ("fax", False, 1, 0),
        ("mail", False, 2, 0),
    ]
    assert counts[0].by_route == {"vision": 1, "": 1}


def test_a_notification_goes_to_the_channels_of_its_route_and_its_end_follows(bench):
    with bench.database.write() as session:
        replace_routes(
            session, [Route(name="r", projects=("default",), channels=("slack_webhook",))]
        )
    job = Job(bench, 1)
    for number in range(13):
        job.feed(100 * number, 100 * number + 100, leak)
    assert bench.notified_states("slack_webhook") == ["firing"]
    with bench.database.write() as session:
        replace_routes(session, [Route(name="r", channels=("webhook",))])
    job.finish("oom", 1400)
    assert bench.notified_states("slack_webhook") == ["firing", "oom"]
    assert bench.notified_states("webhook") == ["oom"]


def test_routes_are_stored_in_their_order(database):
    for routes in ([VISION, PAGER], [PAGER, VISION], []):
        with database.write() as session:
            replace_routes(session, routes)
        with database.read() as session:
            assert list_routes(session) == routes


def test_a_route_after_one_that_decides_all_of_its_messages_is_hidden():
    critical = Route(name="critical", severity="critical", channels=("pager",))
    two = Route(name="two", projects=("vision", "nlp"), channels=("mail",))
    assert hidden_routes([critical, VISION]) == {}
    assert hidden_routes([VISION, two]) == {} and hidden_routes([two, VISION]) == {"vision": "two"}
    all_of = Route(name="all", channels=("mail",))
    assert hidden_routes([all_of, critical, PAGER]) == {"critical": "all", "on call": "all"}
    assert hidden_routes([Route(name="all", goes_on=True), critical]) == {}


def test_routes_that_drop_what_none_of_them_names_say_so():
    nothing = Route(name="nothing")
    for routes in ([], [VISION, PAGER], [nothing]):
        assert lost_severities(routes, ()) == [], "without channels nothing is routed"
    assert lost_severities([], ALL) == lost_severities([VISION, PAGER], ALL) == []
    assert lost_severities([VISION, nothing], ALL) == ["note", "warning", "critical"]
    assert lost_severities([PAGER, nothing], ALL) == ["note", "warning"]
    pager = Route(name="pager", severity="critical", channels=("pager",))
    assert lost_severities([pager, nothing], ALL) == ["note", "warning"]
    again = Route(name="again", severity="critical")
    assert lost_severities([pager, again], ALL) == []
    assert lost_severities([again], ALL) == ["critical"]
    assert lost_severities([Route(name="any", projects=("*",))], ALL) == list(SEVERITIES)
    assert lost_severities([Route(name="nothing", projects=("vision",))], ALL) == []
    assert lost_severities([Route(name="nothing", goes_on=True)], ALL) == []
    assert lost_severities([PAGER], ("slack",)) == [], "it goes on"
    assert lost_severities([pager], ("slack",)) == ["critical"], "that channel isn't configured"
    others = [Route(name=name, projects=("x",), channels=(name,)) for name in ALL]
    assert lost_severities(others, ALL) == list(SEVERITIES), "a route names each channel"
