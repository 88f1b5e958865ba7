"""Who guesses tokens is soon not heard any more.

1. An address that was refused MOST times within WITHIN_S seconds gets 429 for whatever token it shows next, right or wrong.
2. A token that was right before is let through all the same: one broken script behind an office's address must not stop its agents.
3. Each process counts for itself and forgets at its end: with four web processes a guesser has four times as many tries. That is plenty
   against 256 random bits; it is there for an admin token that somebody made up.
"""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable

from flask import Flask, Response, current_app, request

from memagent_server.problems import Problem

EXTENSION = "memagent_throttle"
MOST = 20
WITHIN_S = 60.0
_KEPT = 10_000
_LOGIN = ("POST", "/login")


class Throttle:
    """Failures by address, and tokens that were right. `clock` is monotonic, in seconds. What is asked for each request takes no lock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        self._right: OrderedDict[int, None] = OrderedDict()
        """Python's keyed hashes of them: a token that happens to have the same is listened to, no more."""

    def wait_s(self, address: str) -> float:
        """Seconds until this address is heard again; 0 where it is."""
        if not self._failures:
            return 0.0
        with self._lock:
            failures = self._failures.get(_network(address))
            if failures is None or len(failures) < MOST:
                return 0.0
            return max(0.0, failures[0] + WITHIN_S - self._clock())

    def note_failure(self, address: str) -> None:
        with self._lock:
            failures = self._failures.setdefault(_network(address), deque(maxlen=MOST))
            failures.append(self._clock())
            self._failures.move_to_end(_network(address))
            while len(self._failures) > _KEPT:
                self._failures.popitem(last=False)

    def note_right(self, token: str) -> None:
        if hash(token) in self._right:
            return
        with self._lock:
            self._right[hash(token)] = None
            while len(self._right) > _KEPT:
                self._right.popitem(last=False)

    def was_right(self, token: str) -> bool:
        return hash(token) in self._right


def install(app: Flask) -> None:
    """To be installed before `auth`, so that a guess is refused unread."""
    app.extensions[EXTENSION] = Throttle()
    app.before_request(_refuse_guesser)
    app.after_request(_note)


def _refuse_guesser() -> None:
    token = request.headers.get("Authorization")
    if token is None and (request.method, request.path) != _LOGIN:
        return
    throttle = _current()
    wait_s = throttle.wait_s(request.remote_addr or "")
    if wait_s and (token is None or not throttle.was_right(token)):
        raise Problem(
            429,
            f"too many wrong tokens came from this address: wait {math.ceil(wait_s)} s",
            headers={"Retry-After": str(math.ceil(wait_s))},
        )


def _note(response: Response) -> Response:
    token = request.headers.get("Authorization")
    if response.status_code == 401 and (token is not None or (request.method, request.path) == _LOGIN):
        _current().note_failure(request.remote_addr or "")
    elif token is not None and response.status_code < 400:
        _current().note_right(token)
    return response


def _current() -> Throttle:
    throttle: Throttle = current_app.extensions[EXTENSION]
    return throttle


def _network(address: str) -> str:
    """An IPv6 host has a whole /64 to guess from."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
