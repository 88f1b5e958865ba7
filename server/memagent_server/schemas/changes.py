"""The audit log as the API returns it."""

from __future__ import annotations

from memagent_server.schemas.base import NextCursor, Schema, Timestamp


class ValueChange(Schema):
    """A value before and after a change, as text; null where there is none."""

    name: str
    old: str | None
    new: str | None


class Change(Schema):
    """A request that changed something, or was refused.

    - name, email: of the person, or of the token.
    - subject: ids and project that the request names.
    - values: what changed of settings and runs, in 2,000 characters; the last may be `and 9 more`.
    """

    id: int
    at: Timestamp
    name: str
    email: str | None
    method: str
    route: str
    subject: str
    status: int
    values: list[ValueChange]


class ChangePage(Schema):
    """A page of the audit log, the newest first."""

    changes: list[Change]
    next_cursor: NextCursor
