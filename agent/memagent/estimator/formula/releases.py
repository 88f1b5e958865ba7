"""Releases of transformers, and what they change in the memory of a step."""

from __future__ import annotations

import re

from memagent.errors import OptionError

_RELEASE = re.compile(
    r"(?P<major>[45])\.(?P<minor>\d{1,2})(?:\.\d{1,3})?(?:\.?(?:rc|dev)\d+)?", re.ASCII
)
CACHELESS_SINCE = (5, 0)
"""The release since which the Trainer sets `use_cache` to False (trainer.py).

Other loops leave it as the model's config has it. Its default is True.
"""
FUSED_SINCE = (5, 0)
"""The release of transformers since which the Trainer's AdamW is torch's fused one."""


def fills_cache(release: tuple[int, int] | None, loop: str) -> bool:
    """Return True if a model fills a key-value cache in this loop, unless its config disables it.

    None is the newest release of transformers.
    """
    return loop != "trainer" or (release is not None and release < CACHELESS_SINCE)


def release_of(version: str) -> tuple[int, int]:
    """Return major and minor. Raises EstimateError if it isn't a version."""
    match = _RELEASE.fullmatch(version)
    if match is None:
        raise OptionError("transformers", f"is {version!r}: give a version such as 4.48 or 5.0")
    return int(match["major"]), int(match["minor"])
