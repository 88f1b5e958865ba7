"""The newest exposition of this process, and who makes the next one.

1. Up to LIVE_STREAMS streams, a scrape is made when it is asked for: what it shows is as new as the store.
2. Beyond, what is there is handed out at once, and one thread in the background makes the next where that is older than REFRESH_S.
3. Who asks while one is being made gets the last one; only the very first is waited for.
"""

from __future__ import annotations

import gzip
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import Metric
from prometheus_client import generate_latest as encode_text
from prometheus_client.openmetrics.exposition import generate_latest as encode_openmetrics
from prometheus_client.registry import Collector

from memagent_server.metrics.collector import Figures, collect
from memagent_server.metrics.text import write
from memagent_server.store.engine import Database

log = logging.getLogger(__name__)

LIVE_STREAMS = 1_000
REFRESH_S = 10.0
GZIP_LEVEL = 1
"""Level 9 takes seven times as long as level 1 for a fifth less."""


@dataclass
class Scraped(Collector):
    """What was read at once, and the texts that were asked of it so far."""

    families: list[Metric]
    beside: list[Metric]
    """What is not gauges and counters alone, and few: prometheus-client writes it."""
    streams: int
    at: float
    _texts: dict[tuple[bool, bool], bytes] = field(default_factory=dict)

    def collect(self) -> list[Metric]:
        return [*self.families, *self.beside]

    def text(self, *, openmetrics: bool, compressed: bool) -> bytes:
        key = (openmetrics, compressed)
        if key not in self._texts:
            plain = self._texts.setdefault(
                (openmetrics, False), self._written(openmetrics=openmetrics)
            )
            self._texts[key] = gzip.compress(plain, GZIP_LEVEL) if compressed else plain
        return self._texts[key]

    def _written(self, *, openmetrics: bool) -> bytes:
        encode = encode_openmetrics if openmetrics else encode_text
        return write(self.families, openmetrics=openmetrics).removesuffix(b"# EOF\n") + encode(
            _Those(self.beside)
        )


@dataclass(frozen=True)
class _Those(Collector):
    """Families that were collected already."""

    families: list[Metric]

    def collect(self) -> list[Metric]:
        return self.families


class Exposition:
    """`most_streams`: how many are exposed at most. `steady` counts seconds and is never set. `beside` gives what is exposed as well."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float],
        steady: Callable[[], float],
        most_streams: int,
        beside: Callable[[], Collector],
    ) -> None:
        self._beside = beside
        self._database, self._clock, self._steady, self._most = (
            database,
            clock,
            steady,
            most_streams,
        )
        self._figures = Figures(steady)
        self._making = threading.Lock()
        self._newest: Scraped | None = None

    def get(self) -> Scraped:
        """What a scrape is answered with. Raises what the database raises, where one had to be made."""
        newest = self._newest
        if newest is not None and newest.streams > LIVE_STREAMS:
            if self._steady() - newest.at >= REFRESH_S and self._making.acquire(blocking=False):
                threading.Thread(
                    target=self._refresh, name="memagent-exposition", daemon=True
                ).start()
            return newest
        if self._making.acquire(blocking=newest is None):
            try:
                return (
                    self._make() if newest is self._newest or self._newest is None else self._newest
                )
            finally:
                self._making.release()
        assert newest is not None, "only a first one is waited for"
        return newest

    def _refresh(self) -> None:
        try:
            self._make()
        except Exception:
            log.exception("the exposition could not be made anew")
        finally:
            self._making.release()

    def _make(self) -> Scraped:
        made = collect(self._database, self._clock(), self._figures, self._most)
        self._newest = Scraped(
            made.families, list(self._beside().collect()), made.streams, self._steady()
        )
        return self._newest
