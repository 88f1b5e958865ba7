"""What one worker may decide on and send, where several work side by side."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from sqlalchemy.orm import Session


class LostShards(Exception):  # noqa: N818 - no error: another worker has taken over
    """What was about to be written is another worker's by now."""


class Share(Protocol):
    """Keys are run ids, and names of channels."""

    def holds(self, key: str) -> bool:
        """Whether it is this worker's now."""
        ...

    def confirm(self, session: Session, keys: Collection[str]) -> None:
        """Make sure that nobody else gets these until the transaction ends. Raises LostShards where somebody has."""
        ...


class AllShards:
    """The share of a worker that is alone."""

    def holds(self, key: str) -> bool:
        return True

    def confirm(self, session: Session, keys: Collection[str]) -> None:
        """Nobody else is there."""
