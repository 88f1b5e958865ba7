"""Group commit: jobs that arrive during a transaction share the next one.

1. A thread that arrives while no commit is in progress becomes the leader: it commits all waiting
   jobs, its own first, in one transaction. Then the first thread that arrived meanwhile leads.
   There is no extra thread, and without contention no wait.
2. A job is acknowledged after the commit. If the commit fails, all jobs of the group fail, and none
   of them is stored.
3. A job that fails before it has changed anything fails alone. If it has changed something, the
   transaction is rolled back, and each job runs again in a transaction of its own: one bad job
   doesn't harm the others. Jobs must therefore tolerate running twice.
4. At most `max_waiting` jobs wait, each at most `max_wait_s`: BusyError, nothing was done.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection

from memagent_server.store.errors import BusyError, DatabaseError

MAX_GROUP = 64
MAX_WAITING = 24
MAX_WAIT_S = 5.0

T = TypeVar("T")
WriteFunction = Callable[[Connection], T]


class GroupWriter:
    """Runner of jobs in shared transactions. `begin` opens one that commits or rolls back."""

    def __init__(
        self,
        begin: Callable[[], AbstractContextManager[Connection]],
        *,
        max_waiting: int = MAX_WAITING,
        max_wait_s: float = MAX_WAIT_S,
    ) -> None:
        self._begin = begin
        self._max_waiting = max_waiting
        self._max_wait_s = max_wait_s
        self._lock = threading.Lock()
        self._waiting: deque[_Job[Any]] = deque()
        self._has_leader = False

    def run(self, write: WriteFunction[T]) -> T:
        """Return the result of `write` after the commit.

        Raises what it or the database raises, or BusyError.
        """
        job = _Job(write)
        if self._enqueue(job) or self._wait(job):
            self._lead()
        if job.error is not None:
            raise job.error
        result: T = job.result
        return result

    def _enqueue(self, job: _Job[Any]) -> bool:
        """Return True if the job's thread has to lead."""
        with self._lock:
            if len(self._waiting) >= self._max_waiting:
                raise BusyError(
                    f"{self._max_waiting} batches are waiting to be written: retry later."
                )
            self._waiting.append(job)
            if self._has_leader:
                return False
            self._has_leader = True
            return True

    def _wait(self, job: _Job[Any]) -> bool:
        """Wait until the job is done (False) or its thread has to lead (True)."""
        if not job.woken.wait(self._max_wait_s):
            with self._lock:
                # under the lock: a leader may have taken the job since the wait ended
                if not job.woken.is_set() and job in self._waiting:
                    self._waiting.remove(job)
                    raise BusyError(
                        f"Nothing could be written for {self._max_wait_s:.0f} s: retry later."
                    )
            job.woken.wait()  # a leader has taken the job: its result is on the way
        return not job.is_done

    def _lead(self) -> None:
        with self._lock:
            group = [self._waiting.popleft() for _ in range(min(MAX_GROUP, len(self._waiting)))]
        try:
            self._commit(group)
        finally:
            # hand the lead over before the group's threads are woken, so that no job waits for them
            with self._lock:
                self._has_leader = bool(self._waiting)
                if self._waiting:
                    # woken without is_done: its thread leads
                    self._waiting[0].woken.set()
            for job in group:
                job.is_done = True
                job.woken.set()

    def _commit(self, group: Sequence[_Job[Any]]) -> None:
        try:
            with self._begin() as connection:
                for job in group:
                    job.run(connection)
        except _PartialChangeError:
            for job in group:
                self._commit_alone(job)
        except Exception as error:  # noqa: BLE001 - BEGIN or COMMIT failed: no job is stored
            for job in group:
                job.fail(error)

    def _commit_alone(self, job: _Job[Any]) -> None:
        try:
            with self._begin() as connection:
                job.result = job.write(connection)
            job.error = None
        except Exception as error:  # noqa: BLE001 - raised in the thread that waits for the job
            job.fail(error)


class _PartialChangeError(Exception):
    """A job failed after it had changed rows in the group's transaction."""


class _Job(Generic[T]):
    """A write and its outcome. `woken` is set when its thread can go on, or has to lead."""

    def __init__(self, write: WriteFunction[T]) -> None:
        self.write = write
        self.woken = threading.Event()
        self.is_done = False
        self.result: Any = None
        self.error: Exception | None = DatabaseError(
            "The writer was interrupted before this batch was written."
        )

    def run(self, connection: Connection) -> None:
        """Run the job in the group's transaction. Raises _PartialChangeError."""
        before = _change_state(connection)
        try:
            self.result = self.write(connection)
            self.error = None
        except Exception as error:
            if _change_state(connection) != before:
                raise _PartialChangeError from error
            self.error = error

    def fail(self, error: Exception) -> None:
        self.result = None
        self.error = error


def _change_state(connection: Connection) -> tuple[int, bool]:
    """Return the changed rows, and whether the transaction is open: a full disk ends it."""
    # SQLAlchemy has no such counter; a group exists on SQLite only
    raw: Any = connection.connection.dbapi_connection
    return raw.total_changes, raw.in_transaction
