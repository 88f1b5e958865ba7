"""Rehearsal: whether `memagent rehearse` can run here."""

from __future__ import annotations

from collections.abc import Iterator

from memagent.doctor.check import Environment, Finding, ok
from memagent.errors import RehearsalError
from memagent.rehearsal.build import check_machine


def check(_environment: Environment) -> Iterator[Finding]:
    """A machine without CUDA build or compiler is fine: it only can't rehearse."""
    try:
        version = check_machine()
    except RehearsalError as reason:
        yield ok(f"no rehearsals here: {reason}")
        return
    yield ok(f"`memagent rehearse` runs scripts without a GPU, on torch for CUDA {version}")
