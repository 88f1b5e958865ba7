"""Versions of Python, memagent and its dependencies."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib import metadata

from memagent import __version__
from memagent.doctor.check import Environment, Finding, ok, problem, warning

_NEEDED = ("msgspec", "psutil", "urllib3")


def check(_environment: Environment) -> Iterator[Finding]:
    """Check the dependencies, except nvidia-ml-py and torch, which have separate checks."""
    yield ok(f"memagent {__version__}, Python {platform.python_version()} ({sys.executable})")
    for name in _NEEDED:
        if version_of(name) is None:
            yield problem(f"{name} is not installed", f"pip install {name}")
    numpy = version_of("numpy")
    if numpy is None:
        yield warning(
            "numpy is not installed",
            "pip install numpy: torch warns without it, memagent itself works",
        )
    else:
        yield ok(f"numpy {numpy}")


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
