"""Errors of the store, and what driver errors mean: for the log, for the response, and for retries.

MemagentError
├── DatabaseError   the database doesn't answer, or not as it should
├── BusyError       too many writes are waiting
├── SchemaError     the database has another version than this program
├── UnknownRunError a run doesn't exist
└── ConflictError   a key exists with other content

SQLAlchemy's errors are re-exported: no module outside of the store imports SQLAlchemy.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.exc import DataError, DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from memagent.errors import MemagentError

__all__ = [
    "BROKEN_DISK",
    "BUSY",
    "DAMAGED",
    "DISK_FULL",
    "READ_ONLY",
    "SOON_S",
    "UNAVAILABLE",
    "BusyError",
    "ConflictError",
    "DBAPIError",
    "DataError",
    "DatabaseError",
    "DatabaseProblem",
    "OperationalError",
    "PoolTimeoutError",
    "SQLAlchemyError",
    "SchemaError",
    "UnknownRunError",
    "problem_of",
    "reason_of",
]

SOON_S = 2
LATER_S = 10


class DatabaseError(MemagentError):
    """The database doesn't answer, or not as it should."""


class BusyError(MemagentError):
    """Too many writes are waiting: nothing was done, and the request can be retried."""


class SchemaError(MemagentError):
    """The database is newer than this program, or not a database of memagent."""


class UnknownRunError(MemagentError):
    """A run doesn't exist (any more)."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"Unknown run {run_id!r}: start it with POST /api/v1/runs.")


class ConflictError(MemagentError):
    """A key exists with other content."""


@dataclass(frozen=True)
class DatabaseProblem:
    """A problem that is temporary or that people can fix. `what` completes "the database ..."."""

    what: str
    retry_after_s: int


UNAVAILABLE = DatabaseProblem("does not answer", SOON_S)
BUSY = DatabaseProblem("is busy", SOON_S)
DISK_FULL = DatabaseProblem("has no space left on its disk: free some", LATER_S)
READ_ONLY = DatabaseProblem("is read-only: make it writable", LATER_S)
BROKEN_DISK = DatabaseProblem("cannot read or write its disk", LATER_S)
DAMAGED = DatabaseProblem("is damaged: restore a backup", LATER_S)

_BY_SQLITE_MESSAGE = {
    "database or disk is full": DISK_FULL,
    "readonly database": READ_ONLY,
    "is locked": BUSY,
    "disk I/O error": BROKEN_DISK,
    "unable to open database file": UNAVAILABLE,
    "malformed": DAMAGED,
    "file is not a database": DAMAGED,
}
"""By part of the message: Python 3.10's sqlite3 has no error codes."""
_BY_SQLSTATE = {
    "08": UNAVAILABLE,
    "57P": UNAVAILABLE,
    "53100": DISK_FULL,
    "53": BUSY,
    "25006": READ_ONLY,
    "55P03": BUSY,
    "57014": BUSY,
    "40": BUSY,
    "58030": BROKEN_DISK,
    "XX001": DAMAGED,
    "XX002": DAMAGED,
}
"""By the beginning of the code: https://www.postgresql.org/docs/current/errcodes-appendix.html"""
_BY_INTERNAL_MESSAGE = {
    "postmaster was shut down": UNAVAILABLE,
    "terminating connection": UNAVAILABLE,
    "connection marked as essential": UNAVAILABLE,
    "No space left on device": DISK_FULL,
}
"""By part of the message, of errors that Citus hands on from its nodes with the code XX000."""


def problem_of(error: BaseException) -> DatabaseProblem | None:
    """Return the problem behind a database error.

    None means a bug of this program, whose traceback belongs in the log.
    """
    if isinstance(error, PoolTimeoutError):
        return BUSY
    if not isinstance(error, DBAPIError):
        return None
    problem = _problem_of_driver(error.orig)
    # SQLAlchemy knows a lost connection also by messages that have no code
    return UNAVAILABLE if problem is None and error.connection_invalidated else problem


def _problem_of_driver(error: BaseException | None) -> DatabaseProblem | None:
    state: str | None = getattr(error, "sqlstate", None)
    if state is not None:
        if state == "XX000":
            return _by_message(_BY_INTERNAL_MESSAGE, error)
        # longer codes come before their class in the table: the first match counts
        problems = (problem for code, problem in _BY_SQLSTATE.items() if state.startswith(code))
        return next(problems, None)
    if type(error).__module__.startswith("psycopg"):
        # an OperationalError without a code is about the connection: refused, lost or timed out
        kinds = (kind.__name__ for kind in type(error).__mro__)
        return UNAVAILABLE if "OperationalError" in kinds else None
    return _by_message(_BY_SQLITE_MESSAGE, error)


def _by_message(
    problems: dict[str, DatabaseProblem], error: BaseException | None
) -> DatabaseProblem | None:
    message = str(error)
    return next((problem for part, problem in problems.items() if part in message), None)


def reason_of(error: SQLAlchemyError) -> str:
    """Return the driver's message in one line, without the statement and its values."""
    cause = getattr(error, "orig", None) or error
    # the whole text of a PostgreSQL error would quote the statement
    primary = getattr(getattr(cause, "diag", None), "message_primary", None)
    return " ".join(str(primary or cause).split())
