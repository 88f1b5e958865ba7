"""Failures that runs of a project share: the same cause, line and phase.

1. A run gets its failure when it ends: a fingerprint and a title, in the run's own row.
2. The fingerprint of an out-of-memory error is that of cause, phase, and the line of the first
   suspect by its source: edits above it don't count. Without a leak there is no line.
3. That of another error is its type and message without numbers.
4. A run that lost contact has a failure only if the kernel's OOM killer probably ended it.
5. A failure is open until a person resolves it. It has regressed if a launch that began after that
   ended by it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from sqlalchemy import Select, delete, func, select
from sqlalchemy.orm import Session

from memagent.diagnostics import display_path, display_roots
from memagent.forecast.types import LEAK_CAUSES
from memagent_server.schemas.runs import Failure, FailureState
from memagent_server.store.events import oom_events
from memagent_server.store.models import ResolvedFailureRow, RunRow
from memagent_server.store.ranks import OOM_KILLER_TEXT
from memagent_server.store.reading import iso
from memagent_server.store.statements import upsert

MAX_FAILURES = 1_000
MAX_TITLE = 200
"""Characters. With a project and a user of 200 each it fits a row of PostgreSQL's indexes."""
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")
_BEGAN_AT = func.coalesce(RunRow.started_at, RunRow.created_at)


@dataclass(frozen=True)
class FailureIdentity:
    """The parts that a failure shares with the same one of other runs, and its title for people."""

    parts: tuple[str, ...]
    title: str

    def fingerprint(self, project: str) -> str:
        text = "\0".join((project, *self.parts))
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def set_failure(session: Session, run: RunRow) -> None:
    """Set the failure of a run whose status has changed, and whose row is locked."""
    identity = _identity(session, run)
    run.failure = None if identity is None else identity.fingerprint(run.project)
    run.failure_title = None if identity is None else identity.title[:MAX_TITLE]


def _identity(session: Session, run: RunRow) -> FailureIdentity | None:
    if run.status == "oom":
        return _oom(session, run)
    error = run.error or ""
    if run.status == "failed":
        # the rest is a traceback's, or an explanation with paths
        first_line = error.strip().partition("\n")[0] or "failed without an error"
        return FailureIdentity(("failed", _NUMBERS.sub("N", first_line)), first_line)
    if run.status == "lost_contact" and error.startswith(OOM_KILLER_TEXT):
        return FailureIdentity(("killed",), "Killed by the kernel's out-of-memory killer")
    return None


def _oom(session: Session, run: RunRow) -> FailureIdentity:
    from memagent_server.store.snapshots import suspects_of  # imports `runs`, as do others

    data = next((event.data for event in oom_events(session, run.id)), {})
    forecast = data.get("forecast")
    cause = _text(forecast.get("cause")) if isinstance(forecast, dict) else ""
    phase = _text(data.get("phase"))
    line, title = "", "Out of memory"
    suspects = suspects_of(session, run.id) if not cause or cause in LEAK_CAUSES else []
    if suspects:
        suspect = suspects[0]
        file = display_path(suspect.file, display_roots(run.environment))
        # the agent may send no source: then the number has to do
        source = dict(enumerate(suspect.source, suspect.source_first_line))
        line = f"{file}:{source.get(suspect.line, str(suspect.line)).strip()}"
        title += f" at {file}:{suspect.line}"
    title += f" in {phase}" if phase else ""
    title += f": {cause.replace('_', ' ')}" if cause else ""
    return FailureIdentity(("oom", cause, phase, line), title)


def _text(value: Any) -> str:
    """Return a name of an event, whose data is free JSON."""
    return value[:100] if isinstance(value, str) else ""


def list_failures(
    session: Session, *, project: str | None = None, state: FailureState | None = None
) -> list[Failure]:
    """Return the failures that were seen last, at most MAX_FAILURES, of one state or all."""
    query = _grouped().order_by(func.max(RunRow.finished_at).desc()).limit(MAX_FAILURES)
    if project is not None:
        query = query.where(RunRow.project == project)
    if state is not None:
        has_resolution = RunRow.failure.in_(select(ResolvedFailureRow.fingerprint))
        query = query.where(has_resolution if state != "open" else ~has_resolution)
    failures = _describe(session, session.execute(query).all())
    return [item for item in failures if state is None or item.state == state]


def failures_of(session: Session, fingerprints: Collection[str | None]) -> dict[str, Failure]:
    """Return failures by their fingerprints."""
    named = {fingerprint for fingerprint in fingerprints if fingerprint is not None}
    if not named:
        return {}
    rows = session.execute(_grouped().where(RunRow.failure.in_(named))).all()
    return {failure.id: failure for failure in _describe(session, rows)}


def failures_by_run(session: Session, run_ids: Collection[str]) -> dict[str, Failure]:
    """Return the failures of those of these runs that have one."""
    query = select(RunRow.id, RunRow.failure).where(
        RunRow.id.in_(set(run_ids)), RunRow.failure.is_not(None)
    )
    rows = session.execute(query).all()
    failures = failures_of(session, [row.failure for row in rows])
    return {row.id: failures[row.failure] for row in rows if row.failure in failures}


def find_failure(session: Session, fingerprint: str) -> Failure | None:
    return failures_of(session, [fingerprint]).get(fingerprint)


def resolve(session: Session, failure: Failure, *, by: str | None, now: float) -> None:
    """Resolve a failure, or resolve it again after it has regressed."""
    if failure.state != "resolved":
        values = {
            "fingerprint": failure.id,
            "project": failure.project,
            "resolved_at": now,
            "resolved_by": by,
        }
        upsert(session, ResolvedFailureRow, values, update=("resolved_at", "resolved_by"))


def reopen(session: Session, failure: Failure) -> None:
    """Take a resolution back."""
    session.execute(delete(ResolvedFailureRow).where(ResolvedFailureRow.fingerprint == failure.id))


def _grouped() -> Select[Any]:
    columns: tuple[Any, ...] = (RunRow.failure, RunRow.project)
    return (
        select(
            *columns,
            func.max(RunRow.failure_title).label("title"),
            func.count().label("runs"),
            func.count(RunRow.user.distinct()).label("users"),
            func.min(RunRow.finished_at).label("first_seen_at"),
            func.max(RunRow.finished_at).label("last_seen_at"),
            func.max(_BEGAN_AT).label("last_began_at"),
        )
        .where(RunRow.failure.is_not(None))
        .group_by(*columns)
    )


def _describe(session: Session, rows: Iterable[Any]) -> list[Failure]:
    rows = list(rows)
    query = select(ResolvedFailureRow).where(
        ResolvedFailureRow.fingerprint.in_([row.failure for row in rows])
    )
    resolved = {row.fingerprint: row for row in session.scalars(query)}
    return [_failure(row, resolved.get(row.failure)) for row in rows]


def _failure(row: Any, resolution: ResolvedFailureRow | None) -> Failure:
    state: FailureState = "open"
    if resolution is not None:
        state = "regressed" if row.last_began_at > resolution.resolved_at else "resolved"
    return Failure(
        id=row.failure,
        project=row.project,
        title=row.title or "",
        state=state,
        runs=row.runs,
        users=row.users,
        first_seen_at=iso(row.first_seen_at) or "",
        last_seen_at=iso(row.last_seen_at) or "",
        resolved_at=iso(resolution.resolved_at) if resolution else None,
        resolved_by=resolution.resolved_by if resolution else None,
    )
