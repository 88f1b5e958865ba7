"""Pages by key, on both databases."""

from __future__ import annotations

import pytest

from memagent.errors import WireError
from memagent_server.store.cuda_contexts import page_contexts
from memagent_server.store.models import DeviceContextRow, EventRow, RunRow
from memagent_server.store.reading import decode_cursor, encode_cursor, newest_page


def context_page(session, limit, cursor):
    page = page_contexts(session, limit=limit, cursor=cursor)
    return page.contexts, page.next_cursor


def read_to_the_end(turn):
    """All rows that `turn(cursor)` gives page by page."""
    rows, cursor = turn(None)
    while cursor is not None:
        page, cursor = turn(cursor)
        assert page
        rows = [*rows, *page]
    return rows


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 50])
def test_rows_of_equal_time_are_read_once_each(database, limit):
    keys = [
        (at, gpu, torch)
        for at in (1.0, 2.5)
        for gpu in (f"A {at}", f"B é {at}")
        for torch in ("2.1", "2.10")
    ]
    with database.write() as session:
        for at, gpu, torch in keys:
            facts = {"driver": "570", "runs": 1, "newest_bytes": 1, "low_bytes": 1, "high_bytes": 1}
            session.add(DeviceContextRow(gpu=gpu, torch=torch, updated_at=at, **facts))
    with database.read() as session:
        result = read_to_the_end(lambda cursor: context_page(session, limit, cursor))
    assert sorted((row.gpu, row.torch) for row in result) == sorted(
        (gpu, torch) for _, gpu, torch in keys
    )
    times = [row.updated_at for row in result]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_pages_are_newest_first_and_stable_during_inserts(database, limit):
    def add(session, *steps):
        session.add_all(
            EventRow(run_id="r", rank=0, attempt=0, step=step, at=1.0, kind="x") for step in steps
        )

    with database.write() as session:
        session.add(
            RunRow(
                id="r", project="p", name="r", status="running", created_at=1.0, last_seen_at=1.0
            )
        )
        session.flush()
        add(session, *range(5))

    def turn(cursor):
        with database.write() as session:
            page, following = newest_page(
                session, EventRow, EventRow.run_id == "r", limit=limit, cursor=cursor
            )
            add(session, 99)
        return [event.step for event in page], following

    assert read_to_the_end(turn) == [4, 3, 2, 1, 0]


def test_a_cursor_is_decoded_with_its_own_types_only(database):
    cursor = encode_cursor(RunRow(created_at=0.1 + 0.2, id="r"), (RunRow.created_at, RunRow.id))
    assert decode_cursor(cursor, (float, str)) == (0.1 + 0.2, "r")
    for kinds in ((str, str), (float, str, str), (float,)):
        with pytest.raises(WireError, match="leave it out") as caught:
            decode_cursor(cursor, kinds)
        assert caught.value.field == "cursor"
