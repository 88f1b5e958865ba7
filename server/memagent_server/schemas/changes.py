"""The audit log as the API returns it."""

from __future__ import annotations

from memagent_server.schemas.base import NextCursor, Schema, Timestamp


class Change(Schema):
    """A request that changed something, or was refused.

    - name, email: of the person, or of the token.
    - subject: ids and project that the request names.
    """

    id: int
    at: Timestamp
    name: str
    email: str | None
    method: str
    route: str
    subject: str
    status: int


class ChangePage(Schema):
    """A page of the audit log, the newest first."""

    changes: list[Change]
    next_cursor: NextCursor
