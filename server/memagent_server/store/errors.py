"""What the store refuses.

MemagentError
├── DatabaseError   the database does not answer, or not as it should
├── BusyError       too much waits to be written
├── SchemaError     the database is of another version than this program
├── UnknownRunError a run was named that does not exist
└── ConflictError   a key exists with other content
"""

from __future__ import annotations

from memagent.errors import MemagentError


class DatabaseError(MemagentError):
    """The database does not answer, or not as it should."""


class BusyError(MemagentError):
    """Too much waits to be written: nothing was done, and it may be tried again."""


class SchemaError(MemagentError):
    """The database is newer than this program, or no database of memagent."""


class UnknownRunError(MemagentError):
    """A run was named that does not exist (any more)."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"no run {run_id!r} is known; start it first with POST /api/v1/runs")


class ConflictError(MemagentError):
    """A key exists already, with other content."""
