"""People who logged in with the OpenID Connect provider: stored at each login, listed, logged out.

A session is a signed cookie with the person's id and `session_series`. It has the rights of the
newest login, and ends when the series does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from sqlalchemy import Connection, bindparam, func, select, update
from sqlalchemy.orm import Session

from memagent_server.store.models import PersonRow
from memagent_server.store.statements import CompiledSelect, insert_if_missing

MAX_LISTED = 500
"""People of a large company who have logged in once; the page shows those seen last."""


@dataclass(frozen=True)
class KnownPerson:
    """A person as stored. A `scope` of None opens nothing."""

    id: int
    issuer: str
    name: str
    email: str | None
    scope: str | None
    projects: list[str]
    admin_projects: list[str]
    session_series: int
    created_at: float
    last_seen_at: float


_KNOWN = select(*(getattr(PersonRow, field.name) for field in fields(KnownPerson)))
_BY_ID = CompiledSelect(_KNOWN.where(PersonRow.id == bindparam("id")))


def put_person(
    session: Session,
    *,
    issuer: str,
    subject: str,
    name: str,
    email: str | None,
    scope: str | None,
    projects: Sequence[str],
    admin_projects: Sequence[str] = (),
    now: float,
) -> KnownPerson:
    """Store the result of a login. Without a scope, it ends the sessions of earlier ones."""
    key = {"issuer": issuer, "subject": subject}
    changes = {
        "name": name,
        "email": email,
        "scope": scope,
        "projects": list(projects),
        "admin_projects": list(admin_projects),
        "last_seen_at": now,
    }
    insert_if_missing(session, PersonRow, {**key, **changes, "created_at": now})
    person = session.scalars(
        select(PersonRow)
        .filter_by(**key)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one()
    for column, value in changes.items():
        setattr(person, column, value)
    if scope is None:
        person.session_series += 1
    session.flush()
    return _known(person)


def get_person(connection: Connection, person_id: int) -> KnownPerson | None:
    rows = _BY_ID.rows(connection, {"id": person_id})
    return KnownPerson(*rows[0]) if rows else None


def mark_seen(session: Session, person_id: int, now: float) -> None:
    """Note when a person last used the server."""
    session.execute(update(PersonRow).where(PersonRow.id == person_id).values(last_seen_at=now))


def list_people(session: Session) -> tuple[list[KnownPerson], int]:
    """Return the MAX_LISTED people seen last, and how many there are."""
    newest = (
        select(PersonRow).order_by(PersonRow.last_seen_at.desc(), PersonRow.id).limit(MAX_LISTED)
    )
    count = session.scalar(select(func.count()).select_from(PersonRow)) or 0
    return [_known(person) for person in session.scalars(newest.limit(MAX_LISTED))], count


def end_sessions(session: Session, person_id: int) -> str | None:
    """End all sessions of a person; return the name, None for an unknown id."""
    person = session.get(PersonRow, person_id, with_for_update=True)
    if person is None:
        return None
    person.session_series += 1
    return person.name


def _known(person: PersonRow) -> KnownPerson:
    return KnownPerson(*(getattr(person, field.name) for field in fields(KnownPerson)))
