"""The card of a rehearsal: one of the registry, or any with another memory."""

from __future__ import annotations

import re
from dataclasses import replace

from memagent.errors import EstimateError, RehearsalError
from memagent.estimator.cards import CARDS as ALL_CARDS
from memagent.estimator.cards import PAGE_BYTES, Card, find_card
from memagent.estimator.cards import card_named as known_card
from memagent.units import GIB, MIB

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(GiB|GB|MiB|MB)", re.IGNORECASE)
UNITS = {"gib": GIB, "gb": 10**9, "mib": MIB, "mb": 10**6}
CARDS = {key: card for key, card in ALL_CARDS.items() if card.multiprocessors}
"""The cards with CUDA."""


def card_named(text: str) -> Card:
    """Return the card. `NAME:24GiB` has that memory; an unknown NAME is like an A100 otherwise."""
    name, _, size = text.partition(":")
    try:
        card = find_card(name) if size else known_card(name)
    except EstimateError as error:
        raise RehearsalError(f"{error}; NAME:24GiB is a card with another memory.") from error
    if card is not None and not card.multiprocessors:
        raise RehearsalError(f"{card.name} has no CUDA: a rehearsal needs one of NVIDIA's cards.")
    if not size:
        assert card is not None
        return card
    total = parse_size(size)
    return replace(card or replace(CARDS["a100"], name=name), total_bytes=total)


def parse_size(text: str) -> int:
    """Return the bytes of `24GiB` in whole pages. Raises RehearsalError."""
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise RehearsalError(f"{text!r} is not a size: write it as 24GiB or 24000MB.")
    return int(float(match[1]) * UNITS[match[2].lower()]) // PAGE_BYTES * PAGE_BYTES
