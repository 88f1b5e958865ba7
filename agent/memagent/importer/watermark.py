"""Watermark: how much of a run has been imported, so that a later import adds only what is new.

1. It's a small file in `imported/` of the run files' folder, one for each run and launch.
2. A source grows at the ends of its scalars and devices. Their extents have the number of points
   and their checksum: if these differ, the source was rewritten.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from memagent.errors import MemagentError
from memagent.importer.scalar_table import Extent
from memagent.importer.source_files import open_regular
from memagent.importer.source_run import SourceRun

FOLDER = "imported"
FILE_BYTES = 4 * 2**20
"""Limit for a watermark: 2,000 names of 1,000 characters, twice."""


class Watermark(msgspec.Struct, frozen=True, kw_only=True):
    """Attempt, next batch and end of an imported run, and its extents by name."""

    attempt: int
    next_seq: int
    status: str | None
    scalars: dict[str, Extent]
    devices: dict[str, Extent]

    def is_before(self, run: SourceRun) -> bool:
        """Return True if the run has all that was imported, unchanged."""
        return run.scalars.extends(self.scalars) and run.devices.extends(self.devices)

    def counts(self) -> tuple[int, int]:
        """Return the numbers of points and readings."""
        points, readings = (
            sum(count for count, _ in extents.values()) for extents in (self.scalars, self.devices)
        )
        return points, readings


def read_watermark(path: Path) -> Watermark | None:
    """Return a file's watermark, None if there is none that can be read."""
    try:
        with open_regular(path) as file:
            return msgspec.json.decode(file.read(FILE_BYTES), type=Watermark)
    except (MemagentError, OSError, msgspec.MsgspecError):
        return None


def write_watermark(path: Path, watermark: Watermark) -> None:
    """Replace a file's watermark. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    try:
        partial.write_bytes(msgspec.json.encode(watermark))
        partial.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
