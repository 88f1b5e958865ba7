"""The list of runs: filters, search, order, and pages that neither skip nor repeat."""

from __future__ import annotations

import pytest

from memagent.errors import WireError
from memagent.wire.messages import Finish, RunStart
from memagent_server.store.runs import RunQuery, finish_run, list_runs, start_run


@pytest.fixture
def ask(database):
    def ask(**query):
        with database.read() as session:
            page = list_runs(session, RunQuery(**query))
            return [run.id for run in page.runs], page.next_cursor

    return ask


@pytest.fixture
def start(database):
    def start(run_id, now=1.0, **facts):
        with database.write() as session:
            start_run(session, RunStart(run_id=run_id, **facts), now)

    return start


def test_the_newest_come_first_unless_asked_otherwise(ask, start):
    for now, run_id in enumerate("abc"):
        start(run_id, float(now))
    assert ask()[0] == ["c", "b", "a"]
    assert ask(sort="created_at")[0] == ["a", "b", "c"]


@pytest.mark.parametrize("sort", ["-created_at", "created_at"])
def test_pages_neither_skip_nor_repeat_even_where_times_are_equal(ask, start, sort):
    for number in range(25):
        start(f"r{number:02}", float(number // 10))
    found, cursor = [], None
    while True:
        page, cursor = ask(limit=4, cursor=cursor, sort=sort)
        found += page
        if cursor is None:
            break
    assert found == sorted(found, reverse=sort.startswith("-"))
    assert len(found) == 25


def test_runs_that_start_meanwhile_do_not_shift_the_pages(ask, start):
    for number in range(6):
        start(f"r{number}", float(number))
    first, cursor = ask(limit=3)
    start("new", 100.0)
    assert first + ask(limit=3, cursor=cursor)[0] == ["r5", "r4", "r3", "r2", "r1", "r0"]


def test_it_filters_by_project_and_status(ask, start, database):
    start("a", project="nlp")
    start("b", project="vision")
    start("c", project="nlp")
    with database.write() as session:
        finish_run(session, "c", Finish(status="oom"), 2.0)
    assert set(ask(project="nlp")[0]) == {"a", "c"}
    assert ask(project="nlp", status="oom")[0] == ["c"]
    assert ask(project="none")[0] == []


@pytest.mark.parametrize(
    ("q", "found"),
    [
        ("GPT", ["a"]),
        ("plan 9", ["b"]),
        ("ana", ["c"]),
        ("box7", ["d"]),
        ("nightly", ["e"]),
        ("Größe", ["f"]),
        ("%", ["g"]),
        ("_", ["h"]),
        ("nothing like it", []),
    ],
)
def test_it_searches_name_id_project_user_host_and_tags(ask, start, q, found):
    start("a", name="tiny-gpt")
    start("b", name="x", project="Plan 9")
    start("c", name="x", user="ana")
    start("d", name="x", host="box7")
    start("e", name="x", tags=["nightly", "v2"])
    start("f", name="x", tags=["Größe"])
    start("g", name="100%")
    start("h", name="under_score")
    assert ask(q=q)[0] == found


@pytest.mark.parametrize("cursor", ["x", "!!!", "AAAA", "MS4wIGEgYg", "bm90YW51bWJlciBh"])
def test_a_cursor_that_no_page_gave_is_refused(ask, cursor):
    with pytest.raises(WireError) as caught:
        ask(cursor=cursor)
    assert caught.value.field == "cursor"
