"""A run as its source describes it, in the terms of memagent, and of bounded size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memagent.importer.device_log import DeviceLog
from memagent.importer.scalar_table import ScalarTable
from memagent.wire.messages import FinalStatus

CONFIG_CHARACTERS = 2**20
"""Limit for all names and values: a run's first message has room for a fifth of it."""
CONFIG_VALUES = 10_000
SKIPPED_KINDS = 50
"""Kinds have names of the source, which may have any number of them."""
_KIND_CHARACTERS = 60


@dataclass
class SourceRun:
    """One run. `key` identifies it in its source, wherever its files lie. Times are epoch seconds.

    status: None if the source has no end of it. skipped: what memagent doesn't store, by kind.
    notes: what was damaged.
    """

    source: str
    place: Path
    key: str = ""
    name: str | None = None
    project: str | None = None
    user: str | None = None
    host: str | None = None
    started_at: float | None = None
    finished_at: float | None = None
    status: FinalStatus | None = None
    error: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    scalars: ScalarTable = field(default_factory=ScalarTable)
    devices: DeviceLog = field(default_factory=DeviceLog)
    skipped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    _config_characters: int = 0

    @property
    def last_time_s(self) -> float:
        """Return the newest time of the run, 0 if it has none."""
        times = (self.started_at or 0.0, self.finished_at or 0.0)
        return max(*times, self.scalars.last_time_s, self.devices.last_time_s)

    def configure(self, name: str, value: Any, characters: int) -> None:
        """Set a value of the config, whose source has so many characters, while there's room."""
        characters += len(name)
        is_full = name not in self.config and len(self.config) >= CONFIG_VALUES
        if is_full or self._config_characters + characters > CONFIG_CHARACTERS:
            self.skip("config value beyond a MiB")
            return
        self._config_characters += characters
        self.config[name] = value

    def skip(self, kind: str, count: int = 1) -> None:
        """Count something that memagent doesn't store."""
        is_new = kind not in self.skipped
        if len(kind) > _KIND_CHARACTERS or (is_new and len(self.skipped) >= SKIPPED_KINDS):
            kind = "other value"
        self.skipped[kind] += count

    def left_out(self) -> Mapping[str, int]:
        """Return the number of values that aren't imported, by kind."""
        return self.skipped + self.scalars.left_out + self.devices.left_out
