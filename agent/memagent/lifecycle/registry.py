"""The runs of this process: the newest one, and what a forked child does with its parent's."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from memagent.lifecycle.options import AttachOptions
from memagent.record.identity import Identity
from memagent.settings import Settings


class RegisteredRun(Protocol):
    """The interface of a `Run` that its process needs."""

    identity: Identity
    settings: Settings
    status: str

    options: AttachOptions

    def monitors(self, optimizers: Sequence[Any]) -> bool: ...
    def report(self) -> dict[str, Any]: ...
    def finish(self) -> None: ...
    def fail_with(self, error: BaseException) -> None: ...
    def retire(self) -> None: ...
    def abandon(self) -> None: ...


_runs: weakref.WeakSet[RegisteredRun] = weakref.WeakSet()
_newest: RegisteredRun | None = None
_of_thread = threading.local()


def register(run: RegisteredRun) -> None:
    global _newest  # noqa: PLW0603 - a process trains one run at a time
    _runs.add(run)
    _newest = _of_thread.newest = run


def newest_run() -> RegisteredRun | None:
    """Return the run that this process started last, ended or not."""
    return _newest


def newest_run_of_thread() -> RegisteredRun | None:
    """Return the run that this thread started last: a search may train in several."""
    return getattr(_of_thread, "newest", None)


def running_automatic_runs() -> list[RegisteredRun]:
    """Return the runs that `memagent run` started and that haven't ended."""
    return [run for run in _runs if run.options.automatic and run.status == "running"]


def superseded_runs(optimizers: Sequence[Any]) -> list[RegisteredRun]:
    """Return the runs that end if the script attaches to `optimizers` now.

    These are runs of the same optimizers, and in a notebook all: there a cell runs again, and its
    old objects may live on in the history of outputs.
    """
    own = [run for run in _runs if not run.options.automatic and run.status == "running"]
    return own if _is_notebook() else [run for run in own if run.monitors(optimizers)]


def _is_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def _abandon_all() -> None:
    for run in list(_runs):
        if run.status == "running":
            run.abandon()
    _runs.clear()


os.register_at_fork(after_in_child=_abandon_all)
