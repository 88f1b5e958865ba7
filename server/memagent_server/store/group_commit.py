"""Group commit: pieces of work that come while one transaction is under way share the next one.

1. Who comes while nobody leads, leads: it takes what waits, its own first, does it all in one transaction and commits. Then the first
   of those who came meanwhile leads. No thread of our own, and no wait where there is no crowd.
2. A piece of work is acknowledged after the commit. If that fails, all of the group fail, and none of it is there.
3. A piece that fails before it has changed anything fails alone. If it has changed something, everything is rolled back, and each is done
   again in a transaction of its own: one bad piece does not harm the others. So work must bear being done twice.
4. No more than MOST_WAITING wait, and none for longer than `patience_s`: BusyError, nothing has been done.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from sqlalchemy import Connection

from memagent_server.store.errors import BusyError, DatabaseError

MOST_AT_ONCE = 64
MOST_WAITING = 24
PATIENCE_S = 5.0

T = TypeVar("T")
Work = Callable[[Connection], T]


class GroupWriter:
    """`begin` opens a transaction that commits on success and rolls back on an exception."""

    def __init__(
        self,
        begin: Callable[[], AbstractContextManager[Connection]],
        *,
        most_waiting: int = MOST_WAITING,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._begin, self._most_waiting, self._patience_s = begin, most_waiting, patience_s
        self._lock = threading.Lock()
        self._waiting: deque[_Job] = deque()
        self._is_led = False

    def run(self, work: Work[T]) -> T:
        """What `work` returns, once it is committed. Raises what it raises, what the database does, or BusyError."""
        job = _Job(work)
        if self._enter(job) or self._wait(job):
            self._lead()
        if job.error is not None:
            raise job.error
        value: T = job.value
        return value

    def _enter(self, job: _Job) -> bool:
        """Whether the job's thread leads."""
        with self._lock:
            if len(self._waiting) >= self._most_waiting:
                raise BusyError(
                    f"{self._most_waiting} batches wait to be written already; send it again later"
                )
            self._waiting.append(job)
            if self._is_led:
                return False
            self._is_led = True
            return True

    def _wait(self, job: _Job) -> bool:
        """Until the job is settled (False) or its thread is to lead (True)."""
        if not job.called.wait(self._patience_s):
            with self._lock:
                if not job.called.is_set() and job in self._waiting:
                    self._waiting.remove(job)
                    raise BusyError(
                        f"nothing could be written for {self._patience_s:.0f} s; send it again later"
                    )
            job.called.wait()  # it is being written
        return not job.is_settled

    def _lead(self) -> None:
        with self._lock:
            group = [self._waiting.popleft() for _ in range(min(MOST_AT_ONCE, len(self._waiting)))]
        try:
            self._commit(group)
        finally:
            with self._lock:
                self._is_led = bool(self._waiting)
                if self._waiting:
                    self._waiting[0].called.set()
            for job in group:
                job.settle()

    def _commit(self, group: Sequence[_Job]) -> None:
        try:
            with self._begin() as connection:
                for job in group:
                    job.attempt(connection)
        except _SpoiledError:
            for job in group:
                self._commit_alone(job)
        except Exception as error:  # noqa: BLE001 - of BEGIN or COMMIT: nothing is there, and everybody is told
            for job in group:
                job.fail(error)

    def _commit_alone(self, job: _Job) -> None:
        try:
            with self._begin() as connection:
                job.value, job.error = job.work(connection), None
        except Exception as error:  # noqa: BLE001 - for the thread that waits for it
            job.fail(error)


class _SpoiledError(Exception):
    """A piece of work failed half done, and the transaction has its half."""


class _Job:
    """A piece of work and what became of it. `called` is set when its thread has something to do: go on, or lead."""

    def __init__(self, work: Work[Any]) -> None:
        self.work = work
        self.called = threading.Event()
        self.is_settled = False
        self.value: Any = None
        self.error: Exception | None = DatabaseError(
            "the writer was interrupted before it came to this batch"
        )

    def attempt(self, connection: Connection) -> None:
        """Do it in the group's transaction. Raises _SpoiledError."""
        before = _changes(connection)
        try:
            self.value, self.error = self.work(connection), None
        except Exception as error:
            if _changes(connection) != before:
                raise _SpoiledError from error
            self.error = error

    def fail(self, error: Exception) -> None:
        self.value, self.error = None, error

    def settle(self) -> None:
        self.is_settled = True
        self.called.set()


def _changes(connection: Connection) -> tuple[int, bool]:
    """Rows changed so far by the connection, and whether its transaction is still open: a full disk ends it."""
    raw: Any = connection.connection.dbapi_connection
    return raw.total_changes, raw.in_transaction
