"""Snapshots of a run's memory, and the suspects in them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from memagent_server.schemas.base import (
    DeviceId,
    JsonObject,
    NextCursor,
    Ratio,
    RunId,
    Schema,
    Step,
    Timestamp,
)


class SuspectLine(Schema):
    """A line suspected of growth, and the object that it makes grow."""

    kind: str
    holder: str
    file: str
    line: int
    function: str | None
    bytes_per_step: float | None
    confidence: Ratio
    fix: str
    source: Annotated[list[str], Meta(description="Lines around the line, secrets masked.")]
    source_first_line: int


class SuspectByRank(SuspectLine):
    """A suspect of the newest snapshots; `ranks` are those that reported it."""

    ranks: list[int]
    step: Step
    snapshot: Annotated[
        int | None, Meta(description="Null if only the event of an OOM names the suspect.")
    ]


class Suspects(Schema):
    run_id: RunId
    suspects: list[SuspectByRank]


class Snapshot(Schema):
    """The holders of the memory of one rank and device."""

    id: int
    at: Timestamp
    rank: int
    attempt: int
    seq: int
    device: DeviceId
    step: Step
    method: str
    why: str
    suspects: list[SuspectLine]
    notes: list[str]
    has_stacks: bool
    has_viewer: bool


class SnapshotPage(Schema):
    """A page of a run's snapshots, the newest first."""

    run_id: RunId
    snapshots: list[Snapshot]
    next_cursor: NextCursor


class SnapshotDetail(Snapshot):
    """A snapshot with its stacks and tensors."""

    stacks: list[JsonObject]
    tensors: list[JsonObject]
