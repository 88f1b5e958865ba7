"""The runs of this process: the newest one, and what a forked child does with its parent's."""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol

from memagent.record.identity import Identity


class RegisteredRun(Protocol):
    """The interface of a `Run` that its process needs."""

    identity: Identity
    status: str

    @property
    def is_automatic(self) -> bool: ...
    def report(self) -> dict[str, Any]: ...
    def finish(self) -> None: ...
    def fail_with(self, error: BaseException) -> None: ...
    def retire(self) -> None: ...
    def abandon(self) -> None: ...


_runs: weakref.WeakSet[RegisteredRun] = weakref.WeakSet()
_newest: RegisteredRun | None = None


def register(run: RegisteredRun) -> None:
    global _newest  # noqa: PLW0603 - a process trains one run at a time
    _runs.add(run)
    _newest = run


def newest_run() -> RegisteredRun | None:
    """Return the run that this process started last, ended or not."""
    return _newest


def running_automatic_runs() -> list[RegisteredRun]:
    """Return the runs that `memagent run` started and that haven't ended."""
    return [run for run in _runs if run.is_automatic and run.status == "running"]


def _abandon_all() -> None:
    for run in list(_runs):
        if run.status == "running":
            run.abandon()
    _runs.clear()


os.register_at_fork(after_in_child=_abandon_all)
