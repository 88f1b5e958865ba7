"""What the store refuses.

MemagentError
├── DatabaseError   the database does not answer, or not as it should
├── BusyError       too much waits to be written
├── SchemaError     the database is of another version than this program
├── UnknownRunError a run was named that does not exist
└── ConflictError   a key exists with other content

What is wrong with the database, in words: for the log, for the answer to whoever asked, and for how long they should wait.

Only what passes or what people can mend is named here. Everything else that a driver raises is a mistake of ours, and shows its traceback.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

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


SOON_S, LATER_S = 2, 10


@dataclass(frozen=True)
class DatabaseProblem:
    """`what` completes "the database ..."; `retry_after_s` is when it is worth another try."""

    what: str
    retry_after_s: int


AWAY = DatabaseProblem("does not answer", SOON_S)
BUSY = DatabaseProblem("is busy", SOON_S)
FULL = DatabaseProblem("has no room left on its disk: make room", LATER_S)
READ_ONLY = DatabaseProblem("is read-only: make it writable", LATER_S)
BROKEN_DISK = DatabaseProblem("cannot read or write its disk", LATER_S)
DAMAGED = DatabaseProblem("is damaged: restore a backup", LATER_S)

_SQLITE = {
    "database or disk is full": FULL,
    "readonly database": READ_ONLY,
    "is locked": BUSY,
    "disk I/O error": BROKEN_DISK,
    "unable to open database file": AWAY,
    "malformed": DAMAGED,
    "file is not a database": DAMAGED,
}
"""By what the message says: the codes came to Python with 3.11."""
_POSTGRESQL = {
    "08": AWAY,
    "57P": AWAY,
    "53100": FULL,
    "53": BUSY,
    "25006": READ_ONLY,
    "55P03": BUSY,
    "57014": BUSY,
    "40": BUSY,
    "58030": BROKEN_DISK,
    "XX001": DAMAGED,
    "XX002": DAMAGED,
}
"""By SQLSTATE or its beginning: https://www.postgresql.org/docs/current/errcodes-appendix.html"""


def trouble_of(error: BaseException) -> DatabaseProblem | None:
    """The trouble that an error tells of; None where it tells of none."""
    if isinstance(error, PoolTimeoutError):
        return BUSY
    if not isinstance(error, DBAPIError):
        return None
    told = _trouble_of_driver(error.orig)
    return AWAY if told is None and error.connection_invalidated else told


def _trouble_of_driver(error: BaseException | None) -> DatabaseProblem | None:
    """The same for what the driver itself raised."""
    state: str | None = getattr(error, "sqlstate", None)
    if state is not None:
        return next(
            (trouble for code, trouble in _POSTGRESQL.items() if state.startswith(code)), None
        )
    if type(error).__module__.startswith("psycopg"):
        # without a code, its operational errors are of the connection: it was refused, lost or never answered
        return (
            AWAY if "OperationalError" in (kind.__name__ for kind in type(error).__mro__) else None
        )
    return next((trouble for words, trouble in _SQLITE.items() if words in str(error)), None)


def reason_of(error: SQLAlchemyError) -> str:
    """What the driver said, in one line, without the statement and its values."""
    raised = getattr(error, "orig", None) or error
    told = getattr(
        getattr(raised, "diag", None), "message_primary", None
    )  # all of PostgreSQL's error quotes the statement
    return " ".join(str(told or raised).split())
