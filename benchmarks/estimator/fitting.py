"""Does `memagent.fit` make a step run that dies without it? `python -m benchmarks.estimator fit`.

Each model is rehearsed on a card with enough memory, then on cards with some of what it took. Where
the unchanged step runs out of memory, it is fitted to the card and rehearsed again: torch's own
allocator says whether it runs at the first try. `memagent.fit` itself runs inside the rehearsal.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import memagent
from memagent.errors import RehearsalError
from memagent.rehearsal.report import Rehearsal
from memagent.units import format_bytes

STEP = Path(__file__).with_name("fit_step.py")
BATCHES = {
    "decoder12": 8,
    "decoder24": 8,
    "mlp": 8192,
    "bert": 16,
    "gpt2": 8,
    "vit": 32,
    "llama": 8,
    "lstm": 16,
}
SHARES = (0.85, 0.7, 0.6, 0.5)
"""The cards, in what the unchanged step takes of the device."""
_LARGE = "card:80GiB"


@dataclass(frozen=True)
class Fitted:
    """One pair; `unchanged` and `fitted` say how the step ends without and with the changes."""

    model: str
    card_bytes: int
    unchanged: str
    fitted: str

    def row(self) -> str:
        card = format_bytes(self.card_bytes)
        return f"{self.model:<12}{card:>10}  unchanged: {self.unchanged:<10} fitted: {self.fitted}"


def main(only: str = "") -> int:
    """Print a row for each pair, and how many of those that die run at the first try."""
    pairs = [pair for name in BATCHES if only in name for pair in _pairs(name)]
    dying = [pair for pair in pairs if pair.unchanged == "oom"]
    print(f"{sum(pair.fitted == 'runs' for pair in dying)} of {len(dying)} run when fitted")
    return 0


def _pairs(name: str) -> list[Fitted]:
    needed = _rehearse(name, _LARGE).device_bytes[1]
    pairs = []
    for share in SHARES:
        card_bytes = round(share * needed)
        card = f"card:{card_bytes >> 20}MiB"
        pair = Fitted(
            name, card_bytes, _end(name, card), _end(name, card, f"{card_bytes >> 20}MiB")
        )
        print(pair.row(), flush=True)
        pairs.append(pair)
    return pairs


def _end(name: str, card: str, *limit: str) -> str:
    try:
        rehearsal = _rehearse(name, card, *limit)
    except RehearsalError as error:
        return str(error).splitlines()[0]
    return "runs" if rehearsal.fits else rehearsal.status


def _rehearse(name: str, card: str, *limit: str) -> Rehearsal:
    arguments = [name, str(BATCHES[name]), *limit]
    return memagent.rehearse(STEP, arguments, gpu=card, steps=3, silent=True)
