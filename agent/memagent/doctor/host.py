"""The limits on this process's host memory."""

from __future__ import annotations

from collections.abc import Iterator

from memagent.doctor.check import Environment, Finding, ok, problem, warning
from memagent.probe.host_limits import MemoryUsage, limits
from memagent.units import GIB, MIB, format_bytes

_SCARCE_BYTES, _HOPELESS_BYTES = 2 * GIB, 512 * MIB


def check(patient: Environment) -> Iterator[Finding]:
    found = limits(MemoryUsage(0, 0, 0))
    smallest = min(found, key=lambda limit: limit.limit_bytes)
    others = [f"{one.kind} {format_bytes(one.limit_bytes)}" for one in found if one is not smallest]
    beside = f" (others: {', '.join(others)})" if others else ""
    yield judge(
        smallest.limit_bytes,
        f"host memory: {format_bytes(smallest.limit_bytes)}, by {smallest.kind}{beside}",
    )
    given = patient.settings.limit_bytes
    if given is not None:
        yield ok(
            f"MEMAGENT_LIMIT_BYTES: {format_bytes(given)} counts as the limit of the device trained on"
        )


def judge(limit_bytes: int, text: str) -> Finding:
    if limit_bytes < _HOPELESS_BYTES:
        return problem(text, "torch alone needs more: raise the limit")
    if limit_bytes < _SCARCE_BYTES:
        return warning(
            text, "little for torch and its data loaders: raise the limit if this process trains"
        )
    return ok(text)
