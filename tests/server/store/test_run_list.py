"""The list of runs: filters, search, order, pages, tags and the archive."""

from __future__ import annotations

import pytest
from sqlalchemy import event, select

from memagent.errors import WireError
from memagent.wire.messages import Batch, Chunk, Device, Finish, RunStart
from memagent_server.store import run_list
from memagent_server.store.errors import UnknownRunError
from memagent_server.store.models import RunRow, RunTagRow
from memagent_server.store.run_edits import MAX_TAGS, archive, change_tags
from memagent_server.store.run_list import INDEXED, RunQuery, find_runs, list_runs
from memagent_server.store.runs import delete_run, finish_run, get_run, start_run
from memagent_server.store.samples import add_batch


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


def test_the_newest_runs_come_first_by_default(ask, start):
    for now, run_id in enumerate("abc"):
        start(run_id, float(now))
    assert ask()[0] == ["c", "b", "a"]
    assert ask(sort="created_at")[0] == ["a", "b", "c"]


def test_a_run_that_arrives_late_is_as_old_as_its_start(ask, start):
    """As `memagent sync` sends it. A clock that is ahead makes no run newer than its arrival."""
    start("yesterday", 100.0, started_at=100.0)
    start("ahead", 200.0, started_at=900.0)
    start("late", 300.0, started_at=50.0)
    start("now", 400.0)
    assert ask()[0] == ["now", "ahead", "yesterday", "late"]


@pytest.mark.parametrize("sort", ["-created_at", "created_at"])
def test_pages_with_equal_times_neither_skip_nor_repeat(ask, start, sort):
    for number in range(25):
        start(f"r{number:02}", float(number // 10))
    result, cursor = [], None
    while True:
        page, cursor = ask(limit=4, cursor=cursor, sort=sort)
        result += page
        if cursor is None:
            break
    assert result == sorted(result, reverse=sort.startswith("-"))
    assert len(result) == 25


def test_new_runs_do_not_shift_the_pages(ask, start):
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
    ("q", "run_ids"),
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
def test_it_searches_name_id_project_user_host_and_tags(ask, start, q, run_ids):
    start("a", name="tiny-gpt")
    start("b", name="x", project="Plan 9")
    start("c", name="x", user="ana")
    start("d", name="x", host="box7")
    start("e", name="x", tags=["nightly", "v2"])
    start("f", name="x", tags=["Größe"])
    start("g", name="100%")
    start("h", name="under_score")
    assert ask(q=q)[0] == run_ids


@pytest.mark.parametrize(
    ("q", "run_ids"),
    [
        ("whisper bs8", {"a"}),
        ("ana whisper", {"a", "b"}),
        ('"medium bs8"', {"a"}),
        ('"bs8 medium"', set()),
        ("lr=0.001", {"a"}),
        ("lr=1e-3", {"a"}),
        ("lr=0.00", set()),
        ("optimizer.lr=3e-4 ana", {"b"}),
        ("batch_size=8", {"a"}),
        ("batch_size=8.0", {"a"}),
        ("name=adam", {"a", "b"}),
        ("compile=true", {"b"}),
        ("lr=0.1", {"c"}),
        ("=", {"c"}),
        ('"', {"d"}),
        ("lr=nan", set()),
        ("lr=1e999", set()),
    ],
)
def test_it_searches_each_word_and_the_values_of_the_config(ask, start, q, run_ids):
    optimizer = {"name": "AdamW", "lr": 1e-3}
    start(
        "a",
        name="whisper-medium bs8 ctx512",
        user="ana",
        config={"optimizer": optimizer, "batch_size": 8},
    )
    start(
        "b",
        name="whisper-medium bs16",
        user="ana",
        config={"optimizer": {**optimizer, "lr": 3e-4}, "compile": True},
    )
    start("c", name="resnet lr=0.1", user="bo")
    start("d", name='5" disks', user="bo")
    assert set(ask(q=q)[0]) == run_ids


@pytest.mark.parametrize("sort", INDEXED)
def test_a_search_reads_a_bounded_number_of_runs_a_page(ask, start, monkeypatch, sort):
    """Pages of any size lead to all matches, each once, in the list's order."""
    for number in range(11):
        start(f"r{number:02}", name=f"{'odd' if number % 2 else 'even'} {number:02}")
    whole, _ = ask(q="odd", sort=sort)
    assert len(whole) == 5
    monkeypatch.setattr(run_list, "MAX_SEARCHED", 3)
    found, pages, cursor = [], 0, None
    while pages == 0 or cursor is not None:
        ids, cursor = ask(q="odd", sort=sort, cursor=cursor)
        found, pages = found + ids, pages + 1
    assert (found, pages) == (whole, 4)
    assert ask(q="nothing", sort=sort)[0] == []
    assert ask(q="nothing", sort=sort)[1] is not None
    assert ask(sort=sort)[1] is None, "a list without a search isn't cut"


def test_a_tag_is_matched_whole_and_pages_by_time(ask, start):
    for number in range(7):
        start(f"r{number}", float(number), tags=["sweep"] if number != 3 else ["sweep-2"])
    first, cursor = ask(tag="sweep", limit=4)
    assert first + ask(tag="sweep", limit=4, cursor=cursor)[0] == [
        "r6",
        "r5",
        "r4",
        "r2",
        "r1",
        "r0",
    ]
    assert ask(tag="sweep", sort="name", limit=2)[0] == ["r0", "r1"]
    assert ask(tag="swee")[0] == []


def test_archived_runs_are_listed_separately(ask, start, database):
    for run_id in "abc":
        start(run_id)
    with database.write() as session:
        archive(session, ["b"], is_archived=True)
    assert ask(sort="name")[0] == ["a", "c"]
    assert ask(is_archived=True)[0] == ["b"]


@pytest.mark.parametrize(
    ("sort", "order"),
    [("name", "bca"), ("-name", "acb"), ("-peak_ratio", "cab"), ("peak_ratio", "bac")],
)
def test_runs_are_sorted_by_name_and_by_fullness(ask, start, database, sort, order):
    peaks = {"a": 50, "b": None, "c": 90}
    for run_id, name in (("a", "z"), ("b", "m"), ("c", "m")):
        start(run_id, name=name, devices=[Device(id="D", kind="cuda", name="D", limit_bytes=100)])
        if peaks[run_id]:
            columns = {"step": [1], "time_s": [1.0], "allocated_bytes": [peaks[run_id]]}
            with database.write() as session:
                add_batch(
                    session, run_id, Batch(seq=0, chunks=[Chunk(stream="D", columns=columns)]), 2.0
                )
    result, cursor = [], None
    for _ in range(3):
        page, cursor = ask(sort=sort, limit=1, cursor=cursor)
        result += page
    assert ("".join(result), cursor) == (order, None)


@pytest.mark.parametrize("sort", INDEXED)
@pytest.mark.parametrize("query", [{}, {"project": "p"}, {"status": "oom"}, {"tag": "t"}])
def test_no_page_of_a_long_list_is_sorted_or_scanned(sqlite_database, sort, query):
    """A tag, project or status in an order of its own may sort what it finds; everything else is read from an index in order."""
    plans = []
    event.listen(
        sqlite_database.engine, "before_cursor_execute", lambda *facts: plans.append(facts[2:4])
    )
    with sqlite_database.read() as session:
        find_runs(session, RunQuery(sort=sort, **query))
        statement, parameters = plans[-1]
        plan = [
            row[3]
            for row in session.connection().exec_driver_sql(
                f"EXPLAIN QUERY PLAN {statement}", parameters
            )
        ]
    assert not [step for step in plan if step.startswith("SCAN")], plan
    if "created_at" in sort or not query:
        assert not [step for step in plan if "TEMP B-TREE" in step], plan


def test_a_cursor_of_another_order_is_refused(ask, start):
    for run_id in "abc":
        start(run_id)
    _, cursor = ask(limit=1)
    with pytest.raises(WireError):
        ask(limit=1, cursor=cursor, sort="name")


@pytest.mark.parametrize(
    "cursor", ["x", "!!!", "AAAA", "MS4wIGEgYg", "bm90YW51bWJlciBh", "WzEsIDJd", "WzEuMCwgMiwgM10"]
)
def test_an_invalid_run_cursor_is_refused(ask, cursor):
    with pytest.raises(WireError) as caught:
        ask(cursor=cursor)
    assert caught.value.field == "cursor"


@pytest.fixture
def tags(database):
    """The tags of a run as its row has them, and as they are filtered by."""

    def tags(run_id):
        with database.read() as session:
            rows = session.scalars(select(RunTagRow.tag).where(RunTagRow.run_id == run_id))
            return get_run(session, run_id).tags, sorted(rows)

    return tags


def test_an_agents_tags_follow_its_launches(start, tags):
    start("r", tags=["b", "a", "b"])
    assert tags("r") == (["b", "a"], ["a", "b"])
    start("r", tags=["c", "a"], attempt=1)
    assert tags("r") == (["c", "a"], ["a", "c"])


def test_edited_tags_outlive_the_next_launch(start, tags, database):
    start("r", tags=["a", "b"])
    start("s")
    with database.write() as session:
        change_tags(session, ["r", "s"], add=["best", "a"], remove=["b"])
    assert (tags("r"), tags("s")) == (
        (["a", "best"], ["a", "best"]),
        (["best", "a"], ["a", "best"]),
    )
    start("r", tags=["a", "b"], attempt=1)
    assert tags("r")[0] == ["a", "best"]


def test_tags_are_at_most_a_hundred(start, tags, database):
    start("r")
    with database.write() as session:
        change_tags(session, ["r"], add=[f"t{number:03}" for number in range(MAX_TAGS + 20)])
    assert [len(item) for item in tags("r")] == [MAX_TAGS, MAX_TAGS]


def test_runs_are_archived_and_restored(start, database):
    start("r")
    for is_archived in (True, False):
        with database.write() as session:
            archive(session, ["r"], is_archived=is_archived)
        with database.read() as session:
            assert session.get_one(RunRow, "r").is_archived is is_archived


def test_an_unknown_run_stops_the_whole_change(start, tags, database):
    start("r")
    with pytest.raises(UnknownRunError), database.write() as session:
        change_tags(session, ["r", "gone"], add=["x"])
    assert tags("r") == ([], [])


def test_deleting_a_run_deletes_its_tags(start, database):
    start("r", tags=["a"])
    with database.write() as session:
        delete_run(session, "r")
    with database.read() as session:
        assert session.scalars(select(RunTagRow.tag)).all() == []
