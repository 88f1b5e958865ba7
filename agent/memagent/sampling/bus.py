"""In-process distribution of a run's samples and events.

1. The collector publishes the samples it has drained, on its own thread. The local forecast, the
   leak monitor and the mirrors subscribe; an error in one of them doesn't reach the others.
2. All parts of the run emit events to its one `EventSink`, on any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from memagent.delivery.partial_batch import StreamColumns
from memagent.diagnostics import ErrorGuard
from memagent.wire.messages import Event

Subscriber = Callable[[str, StreamColumns], None]


class EventSink(Protocol):
    def emit(self, event: Event) -> None:
        """Send `event` with the next batch."""


class SampleBus:
    """`publish(stream, columns)` calls every subscriber with consecutive samples of one stream."""

    def __init__(self, guard: ErrorGuard) -> None:
        self._guard = guard
        self._subscribers: tuple[tuple[str, Subscriber], ...] = ()

    def subscribe(self, name: str, subscriber: Subscriber) -> None:
        """Add a subscriber; `name` appears in the log if it fails."""
        # A new tuple: another thread may be iterating over this one.
        self._subscribers = (*self._subscribers, (name, subscriber))

    def publish(self, stream: str, columns: StreamColumns) -> None:
        for name, subscriber in self._subscribers:
            with self._guard.section(name):
                subscriber(stream, columns)
