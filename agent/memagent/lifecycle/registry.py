"""The runs of this process: which is the newest, which gives way to which, and what a forked child does with its parent's."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

from memagent.diagnostics.console import notify_user
from memagent.errors import SettingError
from memagent.lifecycle.options import AttachOptions
from memagent.live.publisher import feed_live
from memagent.mirror import Tracker, open_trackers, requested
from memagent.record.identity import Identity, identify
from memagent.run import Run
from memagent.settings import Settings

_runs: weakref.WeakSet[Run] = weakref.WeakSet()
_newest: Run | None = None
_derived_ids = 0
"""Runs of this process whose id nobody gave; all ranks count alike, so that the second run of each is the same run again."""


def newest_run() -> Run | None:
    """The run that this process began last, ended or not."""
    return _newest


def start_run(
    settings: Settings, models: Sequence[Any], optimizers: Sequence[Any], options: AttachOptions
) -> Run:
    """A run of this process; one that `memagent run` began gives way to the script's own `attach` and keeps its id."""
    global _newest, _derived_ids  # noqa: PLW0603 - one process trains one run at a time
    automatic = [other for other in _runs if other.is_automatic and other.status == "running"]
    run_id = settings.run_id or next((other.id for other in automatic), None)
    identity = identify(run_id, ordinal=_derived_ids)
    trackers = _find_trackers(settings, options, identity)
    for other in automatic:
        other.retire()
    _derived_ids += run_id is None
    run = Run(settings, identity, models, optimizers, options, trackers)
    run.announce()
    if settings.live is not None:
        feed_live(settings.live, run, options.total_steps)
    _runs.add(run)
    _newest = run
    return run


def _find_trackers(settings: Settings, options: AttachOptions, identity: Identity) -> list[Tracker]:
    """Raises SettingError where there is no run to mirror to; one that nobody attached by hand is recorded without."""
    try:
        wanted = requested(settings.mirror) if options.mirror is None else options.mirror
        return open_trackers(wanted, run_id=identity.run_id, rank=identity.rank)
    except SettingError as error:
        if not options.automatic:
            raise
        notify_user(f"{error}; the run is recorded without a mirror")
        return []


def _abandon_all() -> None:
    for run in list(_runs):
        if run.status == "running":
            run.abandon()
    _runs.clear()


os.register_at_fork(after_in_child=_abandon_all)
