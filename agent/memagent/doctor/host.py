"""Limits on this process's host memory."""

from __future__ import annotations

from collections.abc import Iterator

from memagent.doctor.check import Environment, Finding, ok, problem, warning
from memagent.probe.host_limits import MemoryUsage, limits
from memagent.units import GIB, MIB, format_bytes

_LOW_BYTES = 2 * GIB
_TOO_LOW_BYTES = 512 * MIB


def check(environment: Environment) -> Iterator[Finding]:
    host_limits = limits(MemoryUsage(0, 0, 0))
    smallest = min(host_limits, key=lambda limit: limit.limit_bytes)
    others = [
        f"{one.kind} {format_bytes(one.limit_bytes)}" for one in host_limits if one is not smallest
    ]
    more = f" (others: {', '.join(others)})" if others else ""
    yield judge(
        smallest.limit_bytes,
        f"host memory: {format_bytes(smallest.limit_bytes)}, by {smallest.kind}{more}",
    )
    limit = environment.settings.limit_bytes
    if limit is not None:
        yield ok(f"MEMAGENT_LIMIT_BYTES: {format_bytes(limit)} is the limit of the training device")


def judge(limit_bytes: int, text: str) -> Finding:
    if limit_bytes < _TOO_LOW_BYTES:
        return problem(text, "torch alone needs more: raise the limit")
    if limit_bytes < _LOW_BYTES:
        return warning(
            text, "little memory for torch and data loaders: raise the limit for training"
        )
    return ok(text)
