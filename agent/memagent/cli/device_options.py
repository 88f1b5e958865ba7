"""The device of an estimate, from the options `--gpu` and `--context`."""

from __future__ import annotations

import argparse
import re

from memagent.errors import SettingError
from memagent.estimator.bounds import MEMORY_LIMIT
from memagent.estimator.cards import CARDS, card_named, find_card
from memagent.units import MIB, format_bytes, parse_bytes

CONTEXT_LIMIT = 16 << 30
"""Ten times the largest context and libraries that were measured beside torch."""
_SIZE = re.compile(r"\d+(?:\.\d+)?\s*[kmgt](?:i?b)?", re.IGNORECASE)
"""A memory; a number without a unit is none."""


def card_of(arguments: argparse.Namespace) -> str | None:
    """Return the key of the card that --gpu names, None for a memory.

    Raises EstimateError if there is no such card.
    """
    text = arguments.gpu
    if text is None or (_SIZE.fullmatch(text.strip()) and find_card(text) is None):
        return None
    return card_named(text).key


def limit_bytes_of(arguments: argparse.Namespace) -> int | None:
    """Return the memory of the card, or the memory that --gpu names.

    Raises SettingError for one that no card has.
    """
    card = card_of(arguments)
    if arguments.gpu is None or card:
        return CARDS[card].total_bytes if card else None
    return size_of("--gpu", arguments.gpu, limit=MEMORY_LIMIT)


def context_bytes_of(arguments: argparse.Namespace) -> int | None:
    """Return the measured size of the context, None for the usual one.

    Raises SettingError for a number without a unit, or one that no context has.
    """
    text = arguments.context
    return None if text is None else size_of("--context", text, unit="MiB", limit=CONTEXT_LIMIT)


def size_of(option: str, text: str, *, unit: str = "GiB", limit: int | None = None) -> int:
    """Return the bytes that an option names.

    Raises SettingError for a number without a unit, and for more than `limit`.
    """
    if text.strip().isdecimal() and int(text):
        unit = "B" if int(text) >= MIB else unit
        raise SettingError(f"{option} {text} has no unit: write {text.strip()}{unit}")
    size = parse_bytes(text, option)
    if limit is not None and size > limit:
        raise SettingError(f"{option} is {text}: give at most {format_bytes(limit)}")
    return size
