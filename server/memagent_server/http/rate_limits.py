"""How much a token may ask for: so many requests and so many bytes a second, each with BURST_S seconds' worth to begin with.

1. One script that runs wild must not keep everybody else's batches from the database. Off unless the settings say so.
2. Each token has a bucket of each kind that fills at the quota's pace and is full after BURST_S. A request that finds too little in it is
   answered with 429 and the time until there is enough; an agent waits that long, and nothing of a run is lost.
3. What is larger than a bucket is let through where that is full, and leaves a debt: else it would never be.
4. The web processes of a server count together (`tally`); servers beside each other count for themselves. Browsers, the admin token of
   the settings and servers without tokens are not counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from flask import Flask, current_app, request

from memagent_server.http import auth
from memagent_server.http.problems import Problem
from memagent_server.http.shared_counters import SharedCounters, shared
from memagent_server.settings import Settings

EXTENSION = "memagent_quotas"
BURST_S = 10.0


@dataclass
class Bucket:
    """`level` of what may be taken at the time `at`, in seconds; it fills by `rate` a second up to BURST_S seconds' worth."""

    rate: float
    level: float
    at: float

    @classmethod
    def full(cls, rate: float, now: float) -> Bucket:
        return cls(rate, rate * BURST_S, now)

    def take(self, cost: float, now: float) -> float:
        """0 and the cost is taken, or the seconds until there is enough and nothing is."""
        most = self.rate * BURST_S
        self.level = min(most, self.level + self.rate * max(0.0, now - self.at))
        self.at = now
        lacking = min(cost, most) - self.level
        if lacking > 0:
            return lacking / self.rate
        self.level -= cost
        return 0.0


class RateLimits:
    """The buckets of all tokens. `tally` has rows of the two numbers of a bucket; `clock` is monotonic, in seconds."""

    def __init__(
        self,
        requests: float | None,
        size_bytes: float | None,
        tally: SharedCounters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rates = {"requests": requests, "bytes": size_bytes}
        self._tally, self._clock = tally, clock

    def take(self, token_id: int, kind: str, cost: float) -> float:
        """Seconds that the token has to wait before it may have so much; 0 where it has it."""
        rate = self._rates[kind]
        if rate is None:
            return 0.0
        with self._tally.row(f"{kind} {token_id}") as row:
            now = self._clock()
            level, at = row
            bucket = Bucket(rate, level, at) if at else Bucket.full(rate, now)
            wait_s = bucket.take(cost, now)
            row[0], row[1] = bucket.level, bucket.at
            return wait_s


def install(app: Flask, settings: Settings) -> None:
    """To be installed after `auth`, which says whose request it is."""
    if settings.quota_requests is None and settings.quota_bytes is None:
        return
    tally = shared("quotas", 2, settings.secret_key)
    app.extensions[EXTENSION] = RateLimits(settings.quota_requests, settings.quota_bytes, tally)
    app.before_request(_take)


def _take() -> None:
    access = auth.who()
    if access is None or access.token_id is None or "Authorization" not in request.headers:
        return
    quotas: RateLimits = current_app.extensions[EXTENSION]
    for kind, cost in (("requests", 1.0), ("bytes", float(request.content_length or 0))):
        wait_s = math.ceil(quotas.take(access.token_id, kind, cost))
        if wait_s:
            raise Problem(
                429,
                f"the token {access.name!r} has used up its {kind} for now: wait {wait_s} s",
                headers={"Retry-After": str(wait_s)},
            )
