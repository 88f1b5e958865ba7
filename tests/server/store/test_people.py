"""People as stored by their logins."""

from __future__ import annotations

from memagent_server.store.people import (
    end_sessions,
    get_person,
    list_people,
    mark_seen,
    put_person,
)


def log_in(session, now, **changes):
    facts = {
        "issuer": "https://id.example",
        "subject": "ada",
        "name": "Ada",
        "email": "ada@example.org",
        "scope": "read",
        "projects": ["vision"],
    }
    return put_person(session, **{**facts, **changes}, now=now)


def get(database, person_id):
    with database.connect() as connection:
        return get_person(connection, person_id)


def test_a_person_is_one_row_with_the_newest_login(database):
    with database.write() as session:
        first = log_in(session, 1.0)
        other = log_in(session, 2.0, issuer="https://other.example")
        again = log_in(session, 3.0, name="Ada L.", email=None, scope="admin", projects=[])
    assert other.id != first.id == again.id
    known = get(database, first.id)
    assert (known.name, known.email, known.scope, known.projects) == ("Ada L.", None, "admin", [])
    assert (known.created_at, known.last_seen_at, known.session_series) == (1.0, 3.0, 0)
    assert get(database, 999) is None


def test_sessions_end_with_their_series(database):
    with database.write() as session:
        person = log_in(session, 1.0)
        assert end_sessions(session, person.id) == "Ada"
        assert end_sessions(session, 999) is None
    assert get(database, person.id).session_series == 1
    with database.write() as session:
        assert log_in(session, 2.0).session_series == 1
        assert log_in(session, 3.0, scope=None, projects=[]).session_series == 2


def test_people_are_listed_by_when_they_were_seen(database):
    with database.write() as session:
        ada, bob = log_in(session, 1.0), log_in(session, 2.0, subject="bob", name="Bob")
        mark_seen(session, ada.id, 5.0)
    with database.read() as session:
        people, count = list_people(session)
    assert [person.name for person in people] == ["Ada", "Bob"]
    assert count == 2
    assert get(database, bob.id).last_seen_at == 2.0
