"""Delay before a retry: exponential back-off with jitter, or what the server asks for."""

from __future__ import annotations

import random

_random = random.SystemRandom()
"""The training script's own generator must not advance: it decides what the script computes."""


def retry_delay_s(
    failures: int, *, first_s: float, max_s: float, retry_after_s: float | None = None
) -> float:
    """Return the seconds to wait after so many failures in a row, at most `max_s`.

    The jitter spreads clients that failed together. If a server asks for a delay, the jitter only
    adds to it.
    """
    if retry_after_s is not None:
        delay_s = retry_after_s * _random.uniform(1.0, 1.25)
    else:
        exponent = min(failures - 1, 30)  # a float holds 2**1023 at most
        delay_s = min(first_s * 2**exponent, max_s)
        delay_s *= _random.uniform(0.5, 1.0)
    return min(delay_s, max_s)
