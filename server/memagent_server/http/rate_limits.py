"""Rate limits by token: so many requests and so many bytes a second, with a burst of BURST_S
seconds' worth.

1. One runaway script must not keep all other batches from the database. Off by default.
2. Each token has a bucket of each kind that fills at the quota's rate and is full after BURST_S. A
   request that finds too little in it gets 429 and the time until there is enough. An agent waits
   that long, and no data of a run is lost.
3. A request larger than a bucket is accepted when that is full, and leaves a debt: otherwise it
   could never pass.
4. The web processes of a server count together (`shared_counters`); several servers count
   separately. Browsers, the admin token of the settings and servers without tokens are not limited.
5. A public link has a bucket of requests, too: whoever has its address needs no token.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from flask import Flask, current_app, request

from memagent_server.http import auth
from memagent_server.http.problems import Problem
from memagent_server.http.shared_counters import SharedCounters, open_counters
from memagent_server.settings import Settings

EXTENSION = "memagent_quotas"
BURST_S = 10.0
PUBLIC_REQUESTS_PER_S = 100.0
"""Requests to one public link: enough for 100 open pages of a running run."""
_PUBLIC = "memagent_public_quota"


@dataclass
class Bucket:
    """A token bucket: it had `level` units at time `at`, in seconds, and fills by `rate` units a
    second up to BURST_S seconds' worth.
    """

    rate: float
    level: float
    at: float

    @classmethod
    def full(cls, rate: float, now: float) -> Bucket:
        return cls(rate, rate * BURST_S, now)

    def take(self, cost: float, now: float) -> float:
        """Take the cost and return 0, or take nothing and return the seconds to wait."""
        capacity = self.rate * BURST_S
        # max: a time that is left from before a reboot may lie in the future
        self.level = min(capacity, self.level + self.rate * max(0.0, now - self.at))
        self.at = now
        # a request of more than a full bucket's worth passes when the bucket is full
        lacking = min(cost, capacity) - self.level
        if lacking > 0:
            return lacking / self.rate
        self.level -= cost
        return 0.0


class RateLimits:
    """The buckets of all tokens.

    A row of `buckets` holds a bucket's level and time; `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        requests_per_s: float | None,
        bytes_per_s: float | None,
        buckets: SharedCounters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rates = {"requests": requests_per_s, "bytes": bytes_per_s}
        self._buckets = buckets
        self._clock = clock

    def take(self, key: int | str, kind: str, cost: float) -> float:
        """Return the seconds that a token or link has to wait; 0 if its bucket had enough."""
        rate = self._rates[kind]
        if rate is None:
            return 0.0
        with self._buckets.row(f"{kind} {key}") as row:
            now = self._clock()
            level, at = row
            # 0 is a new row: see SharedCounters
            bucket = Bucket(rate, level, at) if at else Bucket.full(rate, now)
            wait_s = bucket.take(cost, now)
            row[0] = bucket.level
            row[1] = bucket.at
            return wait_s


def install(app: Flask, settings: Settings) -> None:
    """Install after `auth`, which knows whose request it is."""
    links = open_counters("public_links", 2, settings.secret_key)
    app.extensions[_PUBLIC] = RateLimits(PUBLIC_REQUESTS_PER_S, None, links)
    if settings.quota_requests is None and settings.quota_bytes is None:
        return
    buckets = open_counters("quotas", 2, settings.secret_key)
    app.extensions[EXTENSION] = RateLimits(settings.quota_requests, settings.quota_bytes, buckets)
    app.before_request(_check_limits)


def _check_limits() -> None:
    access = auth.current_access()
    # browsers and the admin token have no quota
    if access is None or access.token_id is None or "Authorization" not in request.headers:
        return
    limits: RateLimits = current_app.extensions[EXTENSION]
    for kind, cost in (("requests", 1.0), ("bytes", float(request.content_length or 0))):
        wait_s = math.ceil(limits.take(access.token_id, kind, cost))
        if wait_s:
            raise Problem(
                429,
                f"Token {access.name!r} has used up its quota of {kind}. Wait {wait_s} s.",
                headers={"Retry-After": str(wait_s)},
            )


def check_public_link(run_id: str) -> None:
    """Count a request to the public link of a run. Raises Problem 429."""
    limits: RateLimits = current_app.extensions[_PUBLIC]
    if wait_s := math.ceil(limits.take(run_id, "requests", 1.0)):
        raise Problem(
            429,
            f"This link gets too many requests. Wait {wait_s} s.",
            headers={"Retry-After": str(wait_s)},
        )
