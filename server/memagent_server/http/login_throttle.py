"""Block addresses that keep guessing tokens.

1. An address that sent MAX_FAILURES invalid tokens within WINDOW_S seconds gets 429 for its next
   token, right or wrong.
2. A token that was valid before is accepted all the same: one broken script behind an office's
   address must not stop its agents. Only a token that `auth` has checked is remembered, so headers
   with other tokens, or sent to public paths, take no place in the table.
3. Tokens of one address that are checked at the same time count one after the other: after the
   MAX_FAILURES-th failure, the result of a check is not revealed.
4. The web processes of a server count together (`shared_counters`), until the server stops. The
   throttle protects an admin token that a person made up: 256 random bits need no such help.
"""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from flask import Flask, current_app, request

from memagent_server.http.problems import Problem
from memagent_server.http.shared_counters import SharedCounters, open_counters
from memagent_server.settings import Settings

EXTENSION = "memagent_throttle"
MAX_FAILURES = 20
WINDOW_S = 60.0
_MAX_VALID_TOKENS = 10_000


class LoginThrottle:
    """Failed attempts by address, and tokens known to be valid. The check of a known token takes no
    lock.

    A row of `failures` holds the times of an address's last MAX_FAILURES failures, oldest first, by
    the monotonic `clock`. A row of `valid` holds a number other than 0 for a valid token.
    """

    def __init__(
        self,
        failures: SharedCounters,
        valid: SharedCounters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._failures = failures
        self._valid = valid
        self._clock = clock
        self._lock = threading.Lock()
        self._valid_hashes: OrderedDict[int, None] = OrderedDict()
        """Python's keyed hashes of the valid tokens that this process has seen. A collision only
        lets a guess be checked.
        """

    def wait_s(self, address: str) -> float:
        """Return the seconds until this address is unblocked, 0 if it isn't blocked."""
        return self._wait_s(self._failures.find(_network(address)))

    def add_failure(self, address: str) -> float:
        """Count a failure and return 0. A blocked address gets the seconds that it has to wait."""
        with self._failures.row(_network(address)) as times:
            wait_s = self._wait_s(times)
            if not wait_s:
                for place in range(MAX_FAILURES - 1):
                    times[place] = times[place + 1]
                times[MAX_FAILURES - 1] = self._clock()
        return wait_s

    def add_valid(self, token: str) -> None:
        # a hash, so that the tokens themselves don't stay in memory
        if hash(token) in self._valid_hashes:
            return
        with self._lock:
            self._valid_hashes[hash(token)] = None
            while len(self._valid_hashes) > _MAX_VALID_TOKENS:
                self._valid_hashes.popitem(last=False)
        with self._valid.row(token) as row:
            row[0] = 1.0

    def was_valid_here(self, token: str) -> bool:
        """Check whether this process has seen the token as valid: cheaper than `was_valid`."""
        return hash(token) in self._valid_hashes

    def was_valid(self, token: str) -> bool:
        return self._valid.find(token)[0] != 0.0

    def _wait_s(self, times: Sequence[float] | memoryview[float]) -> float:
        now, oldest = self._clock(), times[0]
        # a time in the future is left from before a reboot
        return oldest + WINDOW_S - now if now - WINDOW_S < oldest <= now else 0.0


def install(app: Flask, settings: Settings) -> None:
    app.extensions[EXTENSION] = LoginThrottle(*open_tables(settings.secret_key))


def open_tables(secret: str) -> tuple[SharedCounters, SharedCounters]:
    """Return the tables of a LoginThrottle: failures and valid tokens."""
    return open_counters("failures", MAX_FAILURES, secret), open_counters("right", 1, secret)


def refuse_blocked(token: str | None = None) -> None:
    """Raises Problem 429 if the client's address is blocked and the token was never valid.

    Without a token, as for a login form, the address alone counts.
    """
    throttle = _current()
    if token is not None and throttle.was_valid_here(token):
        return
    wait_s = throttle.wait_s(request.remote_addr or "")
    if wait_s and (token is None or not throttle.was_valid(token)):
        raise _blocked(wait_s)


def add_check(token: str, *, is_valid: bool) -> None:
    """Count the check of a token.

    Raises Problem 429 if the address was blocked during the check, and the token is not known.
    """
    throttle = _current()
    if not is_valid:
        wait_s = throttle.add_failure(request.remote_addr or "")
        if wait_s:
            raise _blocked(wait_s)
    elif not throttle.was_valid_here(token):
        refuse_blocked(token)
        throttle.add_valid(token)


def _blocked(wait_s: float) -> Problem:
    whole_s = math.ceil(wait_s)
    return Problem(
        429,
        f"Too many invalid tokens from this address. Wait {whole_s} s.",
        headers={"Retry-After": str(whole_s)},
    )


def _current() -> LoginThrottle:
    throttle: LoginThrottle = current_app.extensions[EXTENSION]
    return throttle


def _network(address: str) -> str:
    """Return the address, or an IPv6 host's /64 network: one host can use all of it."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
