"""Snapshots of one rank: the results of diagnoses for the server, and the allocator's record.

The record goes to the server as a page for torch's viewer, and into files next to the run's if the
script requested the diagnosis.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent.diagnostics import ErrorGuard, notify_user
from memagent.record.identity import Identity
from memagent.sampling.sampler import Sampler
from memagent.wire.messages import VIEWER_BYTES, SnapshotMessage, Suspect

if TYPE_CHECKING:
    from memagent.leaks.suspect import Diagnosis

_MAX_SENT_SUSPECTS = 50


class SnapshotWriter:
    """`deliver` sends a snapshot; `stem` is the path of the run's file without its suffix."""

    def __init__(
        self,
        identity: Identity,
        sampler: Sampler,
        guard: ErrorGuard,
        deliver: Callable[[SnapshotMessage], None],
        stem: Path,
    ) -> None:
        self._identity = identity
        self._sampler = sampler
        self._guard = guard
        self._deliver = deliver
        self._stem = stem
        self._seq = 0

    def send(
        self,
        why: str,
        suspects: Sequence[Suspect],
        tensors: Sequence[dict[str, Any]],
        notes: Sequence[str],
        diagnosis: Diagnosis | None,
        record: Mapping[str, Any] | None,
    ) -> None:
        """Send a snapshot of now, with the stacks of a diagnosis and the page of its record."""
        self._deliver(
            SnapshotMessage(
                rank=self._identity.rank,
                attempt=self._identity.attempt,
                seq=self._seq,
                device=self._sampler.tracks[0].probe.device.id,
                step=self._sampler.step,
                time_s=time.time(),
                method=diagnosis.method if diagnosis else "census",
                why=why,
                suspects=list(suspects[:_MAX_SENT_SUSPECTS]),
                stacks=[item.to_message() for item in diagnosis.grown] if diagnosis else [],
                tensors=list(tensors),
                notes=list(notes),
                viewer=self._viewer_page(record) if record else b"",
            )
        )
        self._seq += 1

    def save(self, record: Mapping[str, Any], step: int) -> list[str]:
        """Save the allocator's record, and return a note with its paths."""
        from memagent.leaks.detectors import allocator_history

        with self._guard.section("saving the allocator's record"):
            stem = self._stem.with_name(f"{self._stem.name}-{step}")
            paths = allocator_history.save_snapshot(record, stem)
            note = f"allocator record for torch's viewer: {' and '.join(map(str, paths))}"
            notify_user(note)
            return [note]
        return []

    def _viewer_page(self, record: Mapping[str, Any]) -> bytes:
        """Return torch's page of the allocator's record, compressed."""
        from memagent.leaks.detectors import allocator_history

        with self._guard.section("viewer page"):
            return allocator_history.compressed_page(record, VIEWER_BYTES)
        return b""
