"""The order of the alerts page: by cause, and the least time left first."""

from __future__ import annotations

from msgspec.structs import asdict, replace

from memagent_server.schemas.alerts import Incident
from memagent_server.schemas.runs import RunSummary
from memagent_server.schemas.snapshots import SuspectByRank
from memagent_server.web.labels import to_seconds
from memagent_server.web.triage import NOTES, place_of, triage
from tests.server.web.schema_examples import ALERT, LAST_SEEN_AT, LEAK_SUMMARY, RUN, STARTED_AT

NOW = to_seconds(LAST_SEEN_AT)
SUMMARY = RunSummary(**{name: getattr(RUN, name) for name in RunSummary.__struct_fields__})


def an_incident(run_id, **changes):
    facts = {
        "id": 1, "run_id": run_id, "rule": "oom_forecast", "cause": "leak", "state": "firing", "severity": "warning",
        "opened_at": STARTED_AT, "updated_at": LAST_SEEN_AT, "closed_at": None, "acked_at": None, "acked_by": None,
        "snoozed_until": None, "false_alarm_at": None, "note": None, "alerts": [replace(ALERT, run_id=run_id)],
    }  # fmt: skip
    return Incident(**{**facts, **changes})


def a_run(run_id, eta_s):
    return replace(SUMMARY, id=run_id, forecast=replace(LEAK_SUMMARY, eta_s=eta_s))


RUNS = {name: a_run(name, eta_s) for name, eta_s in (("a", 1500.0), ("b", 60.0), ("c", 300.0))}


def order(incidents, suspects=()):
    groups = triage(incidents, RUNS, dict(suspects), NOW)
    return [(group.title, [row.incident.run_id for row in group.rows]) for group in groups]


def test_the_least_time_left_comes_first():
    (group,) = triage([an_incident(name) for name in "abc"], RUNS, {}, NOW)
    assert [row.incident.run_id for row in group.rows] == ["b", "c", "a"]
    assert [row.urgency.text for row in group.rows] == [
        "OOM in ~60 s",
        "OOM in ~5 min",
        "OOM in ~25 min",
    ]


def test_incidents_are_grouped_by_cause():
    incidents = [an_incident("a"), an_incident("b", cause="fragmentation"), an_incident("c")]
    assert order(incidents) == [("fragmentation", ["b"]), ("leak", ["c", "a"])]


def test_notes_come_last_in_a_group_of_their_own():
    incidents = [an_incident("b", severity="note"), an_incident("a")]
    assert order(incidents) == [("leak", ["a"]), (NOTES, ["b"])]


def test_handled_incidents_follow():
    acked = an_incident("b", acked_at=LAST_SEEN_AT, acked_by="ana")
    snoozed = an_incident("c", snoozed_until="2026-01-01T01:00:00.000Z")
    over = an_incident("c", snoozed_until=STARTED_AT)
    assert order([acked, snoozed, an_incident("a")]) == [("leak", ["a", "b", "c"])]
    assert order([over, an_incident("a")]) == [("leak", ["c", "a"])]


def test_a_group_is_acknowledged_as_far_as_nobody_did():
    first = an_incident("a", alerts=[replace(ALERT, id=7), replace(ALERT, id=8)])
    (group,) = triage([first, an_incident("b", acked_at=LAST_SEEN_AT)], RUNS, {}, NOW)
    assert group.pending_ids == [7]


def test_a_row_has_the_suspects_line_and_the_state_without_a_time():
    suspect = SuspectByRank(
        **{
            **dict.fromkeys(SuspectByRank.__struct_fields__),
            "file": "/home/ana/train.py",
            "line": 88,
            "ranks": [0],
        }
    )
    (group,) = triage([an_incident("x", rule="high_water")], {}, {"x": place_of(suspect)}, NOW)
    (row,) = group.rows
    assert (row.suspect, row.urgency.text, asdict(row.incident)["run_id"]) == (
        "train.py:88",
        "firing",
        "x",
    )
