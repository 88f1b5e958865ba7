"""Who guesses tokens is soon not heard any more.

1. An address that was refused MOST times within WITHIN_S seconds gets 429 for whatever token it shows next, right or wrong.
2. A token that was right before is let through all the same: one broken script behind an office's address must not stop its agents.
3. The web processes of a server count together (`tally`), and forget at its end. It is there for an admin token that somebody made up:
   256 random bits need no such help.
"""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from flask import Flask, Response, current_app, request

from memagent_server.http.problems import Problem
from memagent_server.http.shared_counters import SharedCounters, shared
from memagent_server.settings import Settings

EXTENSION = "memagent_throttle"
MOST = 20
WITHIN_S = 60.0
_KEPT = 10_000
_LOGIN = ("POST", "/login")


class LoginThrottle:
    """Failures by address, and tokens that were right. `clock` is monotonic, in seconds. What is asked for each request takes no lock.

    `failures` has rows of the times of an address's last MOST failures, oldest first; `right` a number other than 0 for a right token.
    """

    def __init__(
        self,
        failures: SharedCounters,
        right: SharedCounters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._failures, self._shared_right, self._clock = failures, right, clock
        self._lock = threading.Lock()
        self._right: OrderedDict[int, None] = OrderedDict()
        """Python's keyed hashes of those that this process knows: a token that happens to have the same is listened to, no more."""

    def wait_s(self, address: str) -> float:
        """Seconds until this address is heard again; 0 where it is."""
        with self._failures.row(_network(address)) as times:
            now, oldest = self._clock(), times[0]
        return oldest + WITHIN_S - now if now - WITHIN_S < oldest <= now else 0.0

    def note_failure(self, address: str) -> None:
        with self._failures.row(_network(address)) as times:
            for place in range(MOST - 1):
                times[place] = times[place + 1]
            times[MOST - 1] = self._clock()

    def note_right(self, token: str) -> None:
        if hash(token) in self._right:
            return
        with self._lock:
            self._right[hash(token)] = None
            while len(self._right) > _KEPT:
                self._right.popitem(last=False)
        with self._shared_right.row(token) as row:
            row[0] = 1.0

    def was_right(self, token: str) -> bool:
        """Asked of this process alone it costs nothing: see `was_right_anywhere`."""
        return hash(token) in self._right

    def was_right_anywhere(self, token: str) -> bool:
        with self._shared_right.row(token) as row:
            return row[0] != 0.0


def install(app: Flask, settings: Settings) -> None:
    """To be installed before `auth`, so that a guess is refused unread."""
    app.extensions[EXTENSION] = LoginThrottle(*tallies(settings.secret_key))
    app.before_request(_refuse_guesser)
    app.after_request(_note)


def tallies(secret: str) -> tuple[SharedCounters, SharedCounters]:
    """What a LoginThrottle keeps its counts in."""
    return shared("failures", MOST, secret), shared("right", 1, secret)


def _refuse_guesser() -> None:
    token = request.headers.get("Authorization")
    if token is None and (request.method, request.path) != _LOGIN:
        return
    throttle = _current()
    if token is not None and throttle.was_right(token):
        return
    wait_s = throttle.wait_s(request.remote_addr or "")
    if wait_s and (token is None or not throttle.was_right_anywhere(token)):
        raise Problem(
            429,
            f"too many wrong tokens came from this address: wait {math.ceil(wait_s)} s",
            headers={"Retry-After": str(math.ceil(wait_s))},
        )


def _note(response: Response) -> Response:
    token = request.headers.get("Authorization")
    if response.status_code == 401 and (
        token is not None or (request.method, request.path) == _LOGIN
    ):
        _current().note_failure(request.remote_addr or "")
    elif token is not None and response.status_code < 400:
        _current().note_right(token)
    return response


def _current() -> LoginThrottle:
    throttle: LoginThrottle = current_app.extensions[EXTENSION]
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
