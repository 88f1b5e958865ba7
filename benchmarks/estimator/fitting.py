"""Does `memagent.fit` make a step run that dies without it? `python -m benchmarks.estimator fit`.

Each model is rehearsed on a card with enough memory, then on cards with some of what it took. Where
the unchanged step runs out of memory, it is fitted to the card and rehearsed again: torch's own
allocator says whether it runs at the first try. `memagent.fit` itself runs inside the rehearsal.
The results are kept in `fit.json` with the libraries' versions; `--rehearse` adds what is missing,
and `--again` fits the kept pairs again.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path

import msgspec

import memagent
from memagent.errors import RehearsalError
from memagent.rehearsal.report import Rehearsal
from memagent.units import format_bytes

RESULTS = Path(__file__).with_name("fit.json")
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
    "encoder": 16,
    "resnet": 16,
    "unet": 16,
    "qwen": 8,
    "gemma": 8,
    "phi": 8,
    "gpt_neox": 8,
    "opt": 8,
    "roberta": 16,
    "distilbert": 16,
    "electra": 16,
    "t5": 8,
    "bart": 8,
    "deit": 32,
    "convnext": 32,
}
SEEN = ("decoder12", "decoder24", "mlp", "bert", "gpt2", "vit", "llama", "lstm")
"""The models that `fit` was written beside."""
SHARES = (0.85, 0.7, 0.6, 0.5)
"""The cards, in what the unchanged step takes of the device."""
_LARGE = "card:80GiB"
_LIBRARIES = ("torch", "transformers")


@dataclass(frozen=True)
class Fitted:
    """One pair; `unchanged` and `fitted` say how the step ends without and with the changes."""

    model: str
    share: float
    card_bytes: int
    unchanged: str
    fitted: str

    @property
    def dies_unchanged(self) -> bool:
        return self.unchanged == "oom"

    @property
    def end(self) -> str:
        """Return "runs", "refused" if `fit` says that nothing helps, or how it ends else."""
        return "refused" if "nothing makes it fit" in self.fitted else self.fitted

    def row(self) -> str:
        card = format_bytes(self.card_bytes)
        return f"{self.model:<12}{card:>10}  unchanged: {self.unchanged:<10} fitted: {self.end}"


def main(only: str = "", *, rehearse: bool = False, again: bool = False) -> int:
    """Print a row for each pair, and how many of those that die run at the first try.

    Refused pairs are among them; pairs that were never rehearsed are counted apart.
    """
    if rehearse:
        _rehearse_all(only)
    if again:
        _fit_again(only)
    pairs = [pair for pair in read() if only in pair.model]
    for pair in pairs:
        print(pair.row())
    for label, is_seen in (("seen", True), ("unseen", False)):
        some = [p for p in pairs if p.dies_unchanged and (p.model in SEEN) is is_seen]
        ends = Counter(pair.end for pair in some)
        others = "".join(f"; {count} {end}" for end, count in ends.items() if end != "runs")
        print(f"{ends['runs']} of {len(some)} {label} run when fitted{others}")
    asked = sum(only in name for name in BATCHES) * len(SHARES)
    alive = sum(not pair.dies_unchanged for pair in pairs)
    print(f"{asked} asked; {alive} run unchanged; {asked - len(pairs)} never rehearsed")
    return 0


def read() -> list[Fitted]:
    """Return the kept pairs."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return [msgspec.convert(pair, Fitted) for pairs in kept.values() for pair in pairs]


def _rehearse_all(only: str) -> None:
    known = {(pair.model, pair.share) for pair in read()}
    for share in SHARES:
        for name in BATCHES:
            if only in name and (name, share) not in known:
                pair = _pair(name, share)
                _keep([*read(), pair])
                print(pair.row(), flush=True)


def _fit_again(only: str) -> None:
    """Rehearse the fitted steps of the kept pairs, with the code and the libraries of now."""
    for pair in [pair for pair in read() if only in pair.model]:
        limit = f"{pair.card_bytes >> 20}MiB"
        then = replace(pair, fitted=_end(pair.model, f"card:{limit}", limit))
        _keep([other for other in read() if other != pair] + [then])
        print(then.row(), flush=True)


def _keep(pairs: list[Fitted]) -> None:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in _LIBRARIES)
    RESULTS.write_text(json.dumps({versions: [asdict(p) for p in pairs]}, indent=1) + "\n")


def _pair(name: str, share: float) -> Fitted:
    card_bytes = round(share * _unchanged_bytes(name))
    card = f"card:{card_bytes >> 20}MiB"
    unchanged, fitted = _end(name, card), _end(name, card, f"{card_bytes >> 20}MiB")
    return Fitted(name, share, card_bytes, unchanged, fitted)


@cache
def _unchanged_bytes(name: str) -> int:
    return _rehearse(name, _LARGE).device_bytes[1]


def _end(name: str, card: str, *limit: str) -> str:
    try:
        rehearsal = _rehearse(name, card, *limit)
    except RehearsalError as error:
        return str(error).splitlines()[0]
    return "runs" if rehearsal.fits else rehearsal.status


def _rehearse(name: str, card: str, *limit: str) -> Rehearsal:
    arguments = [name, str(BATCHES[name]), *limit]
    return memagent.rehearse(STEP, arguments, gpu=card, steps=3, silent=True)
