"""Why a rank fell silent, from the last that was heard of it."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from memagent.units import format_bytes
from memagent.wire.messages import KILLING_LIMITS
from memagent_server.store.models import Rank, Stream

_KILLING_SHARE = 0.9
"""Of the host's memory in use at the last sample, up to a second before the end, from which the kernel is the likely killer."""
"""Limits at which the kernel kills; at others (RLIMIT_AS, RLIMIT_DATA) an allocation fails and the process says so itself."""


def probable_cause(session: Session, rank: Rank) -> str | None:
    """One sentence where the kernel's out-of-memory killer is the likely cause, which leaves a process no last words; else None."""
    host = session.scalar(
        select(Stream).where(
            Stream.run_id == rank.run_id,
            Stream.rank == rank.rank,
            Stream.attempt == rank.attempt,
            Stream.kind == "host",
        )
    )
    if host is None:
        return None
    used, limit = (
        host.latest.get("allocated_bytes"),
        host.latest.get("limit_bytes") or host.limit_bytes,
    )
    if (
        host.limit_source not in KILLING_LIMITS
        or not used
        or not limit
        or used < _KILLING_SHARE * limit
    ):
        return None
    return (
        f"probably killed by the kernel's out-of-memory killer: {format_bytes(used)} of {format_bytes(limit)} "
        f"({host.limit_source}) were in use at step {host.last_step or 0:,}, the last that was heard"
    )
