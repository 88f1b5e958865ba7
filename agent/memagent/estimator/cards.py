"""GPUs by the names that people write: one registry for estimates and rehearsals. No torch.

`total_bytes` is what `torch.cuda.mem_get_info` gives as the total on such a card. Published
out-of-memory messages have it ("total capacity of 79.15 GiB"), to two places; where they differ, it
is the smallest. It's less than the memory as sold: 23.53 GiB of an RTX 4090's 24. Cards without
such a message (A2, A16, P4, RTX 2000 Ada, RTX 5060) have that of the nearest card of their memory.

`find_card` compares names without brands, separators and form factors: `A100-SXM4-80GB`,
`a100 80g`, `1x NVIDIA A100 80GB PCIe` and `a100` are one card. A memory chooses among the sizes
that a card is sold with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache

from memagent.errors import EstimateError, OptionError
from memagent.units import GIB, KIB, MIB

PAGE_BYTES = 2 * MIB
_AMPERE = (8, 0)
_ADA = (8, 9)
_IN_BF16 = ("amp", "bf16", "bf16-amp", "mixed")
"""Precisions of the formula that compute in bf16."""
_SMALLER = 0.9
_ROWS = """
# key|driver's name|GB sold|GiB|capability|multiprocessors|shared KiB|L2 MiB|threads|MHz|bus bits
t4|Tesla T4|16|14.74|7.5|40|64|4|1024|1590|256
k80|Tesla K80|12|11.17|3.7|13|112|1|2048|875|384
p4|Tesla P4|8|7.43|6.1|20|96|2|2048|1114|256
p100|Tesla P100-PCIE-16GB|16|15.89|6.0|56|64|4|2048|1328|4096
p40|Tesla P40|24|22.38|6.1|30|96|3|2048|1531|384
v100|Tesla V100-SXM2-16GB|16|15.77|7.0|80|96|6|2048|1530|4096
v100-32gb|Tesla V100-SXM2-32GB|32|31.74|7.0|80|96|6|2048|1530|4096
v100s|Tesla V100S-PCIE-32GB|32|31.74|7.0|80|96|6|2048|1597|4096
titan-v|NVIDIA TITAN V|12|11.78|7.0|80|96|4|2048|1455|3072
titan-xp|NVIDIA TITAN Xp|12|11.91|6.1|30|96|3|2048|1582|384
gtx1070|NVIDIA GeForce GTX 1070|8|7.92|6.1|15|96|2|2048|1683|256
gtx1080|NVIDIA GeForce GTX 1080|8|7.92|6.1|20|96|2|2048|1734|256
gtx1080ti|NVIDIA GeForce GTX 1080 Ti|11|10.91|6.1|28|96|3|2048|1582|352
rtx2060|NVIDIA GeForce RTX 2060|6|5.79|7.5|30|64|3|1024|1680|192
rtx2060super|NVIDIA GeForce RTX 2060 SUPER|8|7.79|7.5|34|64|4|1024|1650|256
rtx2070|NVIDIA GeForce RTX 2070|8|7.79|7.5|36|64|4|1024|1620|256
rtx2070super|NVIDIA GeForce RTX 2070 SUPER|8|7.79|7.5|40|64|4|1024|1770|256
rtx2080|NVIDIA GeForce RTX 2080|8|7.79|7.5|46|64|4|1024|1710|256
rtx2080super|NVIDIA GeForce RTX 2080 SUPER|8|7.79|7.5|48|64|4|1024|1815|256
rtx2080ti|NVIDIA GeForce RTX 2080 Ti|11|10.75|7.5|68|64|6|1024|1545|352
titan-rtx|NVIDIA TITAN RTX|24|23.64|7.5|72|64|6|1024|1770|384
quadro-rtx6000|Quadro RTX 6000|24|23.64|7.5|72|64|6|1024|1770|384
quadro-rtx8000|Quadro RTX 8000|48|47.45|7.5|72|64|6|1024|1770|384
rtx3050|NVIDIA GeForce RTX 3050|8|7.78|8.6|20|100|2|1536|1777|128
rtx3060|NVIDIA GeForce RTX 3060|12|11.75|8.6|28|100|3|1536|1777|192
rtx3060ti|NVIDIA GeForce RTX 3060 Ti|8|7.78|8.6|38|100|4|1536|1665|256
rtx3070|NVIDIA GeForce RTX 3070|8|7.78|8.6|46|100|4|1536|1725|256
rtx3070ti|NVIDIA GeForce RTX 3070 Ti|8|7.78|8.6|48|100|4|1536|1770|256
rtx3080|NVIDIA GeForce RTX 3080|10|9.77|8.6|68|100|5|1536|1710|320
rtx3080-12gb|NVIDIA GeForce RTX 3080|12|11.75|8.6|70|100|6|1536|1710|384
rtx3080ti|NVIDIA GeForce RTX 3080 Ti|12|11.75|8.6|80|100|6|1536|1665|384
rtx3090|NVIDIA GeForce RTX 3090|24|23.58|8.6|82|100|6|1536|1695|384
rtx3090ti|NVIDIA GeForce RTX 3090 Ti|24|23.58|8.6|84|100|6|1536|1860|384
rtx4060|NVIDIA GeForce RTX 4060|8|7.78|8.9|24|100|24|1536|2460|128
rtx4060ti|NVIDIA GeForce RTX 4060 Ti|8|7.78|8.9|34|100|32|1536|2535|128
rtx4060ti-16gb|NVIDIA GeForce RTX 4060 Ti|16|15.60|8.9|34|100|32|1536|2535|128
rtx4070|NVIDIA GeForce RTX 4070|12|11.72|8.9|46|100|36|1536|2475|192
rtx4070super|NVIDIA GeForce RTX 4070 SUPER|12|11.72|8.9|56|100|48|1536|2475|192
rtx4070ti|NVIDIA GeForce RTX 4070 Ti|12|11.72|8.9|60|100|48|1536|2610|192
rtx4070tisuper|NVIDIA GeForce RTX 4070 Ti SUPER|16|15.60|8.9|66|100|48|1536|2610|256
rtx4080|NVIDIA GeForce RTX 4080|16|15.60|8.9|76|100|64|1536|2505|256
rtx4080super|NVIDIA GeForce RTX 4080 SUPER|16|15.60|8.9|80|100|64|1536|2550|256
rtx4090|NVIDIA GeForce RTX 4090|24|23.53|8.9|128|100|72|1536|2520|384
rtx4090d|NVIDIA GeForce RTX 4090 D|24|23.52|8.9|114|100|72|1536|2520|384
rtx5060|NVIDIA GeForce RTX 5060|8|7.51|12.0|30|100|24|1536|2497|128
rtx5060ti|NVIDIA GeForce RTX 5060 Ti|16|15.47|12.0|36|100|32|1536|2572|128
rtx5070|NVIDIA GeForce RTX 5070|12|11.50|12.0|48|100|48|1536|2512|192
rtx5070ti|NVIDIA GeForce RTX 5070 Ti|16|15.47|12.0|70|100|48|1536|2452|256
rtx5080|NVIDIA GeForce RTX 5080|16|15.47|12.0|84|100|64|1536|2617|256
rtx5090|NVIDIA GeForce RTX 5090|32|31.36|12.0|170|100|96|1536|2407|512
a2000|NVIDIA RTX A2000|6|5.79|8.6|26|100|3|1536|1200|192
a2000-12gb|NVIDIA RTX A2000 12GB|12|11.75|8.6|26|100|3|1536|1200|192
a4000|NVIDIA RTX A4000|16|15.61|8.6|48|100|4|1536|1560|256
a4500|NVIDIA RTX A4500|20|19.67|8.6|56|100|6|1536|1650|320
a5000|NVIDIA RTX A5000|24|23.50|8.6|64|100|6|1536|1695|384
a5500|NVIDIA RTX A5500|24|23.50|8.6|80|100|6|1536|1665|384
a6000|NVIDIA RTX A6000|48|47.40|8.6|84|100|6|1536|1800|384
rtx2000ada|NVIDIA RTX 2000 Ada Generation|16|15.60|8.9|22|100|12|1536|2130|128
rtx4000ada|NVIDIA RTX 4000 Ada Generation|20|19.54|8.9|48|100|48|1536|2175|160
rtx4500ada|NVIDIA RTX 4500 Ada Generation|24|23.50|8.9|60|100|48|1536|2580|192
rtx5000ada|NVIDIA RTX 5000 Ada Generation|32|31.49|8.9|100|100|64|1536|2550|256
rtx6000ada|NVIDIA RTX 6000 Ada Generation|48|44.39|8.9|142|100|96|1536|2505|384
rtxpro6000|NVIDIA RTX PRO 6000 Blackwell|96|94.97|12.0|188|100|128|1536|2617|512
a2|NVIDIA A2|16|14.58|8.6|10|100|2|1536|1770|128
a16|NVIDIA A16|16|14.58|8.6|10|100|2|1536|1755|128
a10|NVIDIA A10|24|22.06|8.6|72|100|6|1536|1695|384
a10g|NVIDIA A10G|24|21.98|8.6|80|100|6|1536|1710|384
a30|NVIDIA A30|24|23.50|8.0|56|164|24|2048|1440|3072
a40|NVIDIA A40|48|44.34|8.6|84|100|6|1536|1740|384
l4|NVIDIA L4|24|22.03|8.9|58|100|48|1536|2040|192
l20|NVIDIA L20|48|44.39|8.9|92|100|96|1536|2520|384
l40|NVIDIA L40|48|44.39|8.9|142|100|96|1536|2490|384
l40s|NVIDIA L40S|48|44.39|8.9|142|100|96|1536|2520|384
a100-40gb|NVIDIA A100-SXM4-40GB|40|39.39|8.0|108|164|40|2048|1410|5120
a100|NVIDIA A100-SXM4-80GB|80|79.15|8.0|108|164|40|2048|1410|5120
a800|NVIDIA A800-SXM4-80GB|80|79.15|8.0|108|164|40|2048|1410|5120
h100|NVIDIA H100 80GB HBM3|80|79.10|9.0|132|228|50|2048|1980|5120
h100-nvl|NVIDIA H100 NVL|94|93.00|9.0|132|228|60|2048|1785|6144
h800|NVIDIA H800|80|79.10|9.0|132|228|50|2048|1980|5120
h20|NVIDIA H20|96|95.00|9.0|78|228|60|2048|1980|6144
gh200|NVIDIA GH200 480GB|96|94.50|9.0|132|228|60|2048|1980|6144
h200|NVIDIA H200|141|139.80|9.0|132|228|60|2048|1980|6144
b200|NVIDIA B200|180|178.35|10.0|148|228|126|2048|1965|8192
b300|NVIDIA B300|288|267.00|10.3|148|228|126|2048|1965|8192
mi100|AMD Instinct MI100|32|31.98|9.0
mi210|AMD Instinct MI210|64|63.98|9.0
mi250x|AMD Instinct MI250X|64|63.98|9.0
mi300x|AMD Instinct MI300X|192|191.50|9.4
mi325x|AMD Instinct MI325X|256|255.50|9.4
mi355x|AMD Instinct MI355X|288|287.50|9.5
rx7900xtx|AMD Radeon RX 7900 XTX|24|23.98|11.0
rx7900xt|AMD Radeon RX 7900 XT|20|19.92|11.0
"""
_BRANDS = re.compile(
    r"nvidia|geforce|tesla|amd|instinct|radeon|rtx|gtx|sxm\d?|pcie?|hbm\d?e?|oam|blackwell|"
    r"generation|tensor core|workstation edition|gpu|\(tm\)|™|480gb|^1 ?x(?= ?[a-z\d])"
)
_MEMORY = re.compile(r"(?<![0-9a-z])(\d+)\s*(?:gi?b?)(?![0-9a-z])")
_OTHER_NAMES = {
    "8000": "quadro8000",
    "mi250": "mi250x",
    "gb200": "b200",
    "gb300": "b300",
    "h200nvl": "h200",
    "7900xt": "rx7900xt",
    "7900xtx": "rx7900xtx",
}
_SEVERAL = re.compile(r"(?P<count>\d+) ?x ?(?P<card>.*[a-z].*|\d{4,}.*)", re.IGNORECASE)


@dataclass(frozen=True)
class Card:
    """A GPU: its name, the memory that its driver offers, and the sizes of its parts.

    `multiprocessors` is 0 for a card without CUDA, whose parts no rehearsal needs.
    """

    key: str
    name: str
    sold_gb: int
    total_bytes: int
    capability: tuple[int, int]
    multiprocessors: int = 0
    shared_bytes: int = 0
    """Shared memory of a multiprocessor; a block gets 1 KiB less."""
    l2_bytes: int = 0
    threads: int = 0
    clock_mhz: int = 0
    bus_bits: int = 0


def precision_remarks(key: str | None, precision: str | None, attention: str = "") -> Iterator[str]:
    """Yield what a card by its key lacks for a precision of the formula.

    torch's memory-efficient attention takes bf16 from Ampere on
    (aten/native/transformers/cuda/sdp_utils.cpp), Transformer Engine fp8 from Ada on.
    """
    card = CARDS.get(key or "")
    if card is None or not card.multiprocessors:  # no card, or one without CUDA
        return
    if precision in _IN_BF16 and card.capability < _AMPERE:
        remark = f"The {card.key} has no bf16, which torch emulates"
        scores = "; attention then holds its scores: --attention eager counts them"
        yield f"{remark}{scores if attention == 'sdpa' else ''}."
    if precision == "fp8" and card.capability < _ADA:
        yield f"The {card.key} has no fp8, which cards have from Ada and Hopper on."


def _card(row: str) -> Card:
    key, name, sold_gb, total_gib, capability, *parts = row.split("|")
    major, minor = capability.split(".")
    numbers = [int(part) for part in parts] or [0] * 6
    multiprocessors, shared_kib, l2_mib, threads, clock_mhz, bus_bits = numbers
    return Card(
        key=key,
        name=name,
        sold_gb=int(sold_gb),
        total_bytes=int(float(total_gib) * GIB) // PAGE_BYTES * PAGE_BYTES,
        capability=(int(major), int(minor)),
        multiprocessors=multiprocessors,
        shared_bytes=shared_kib * KIB,
        l2_bytes=l2_mib * MIB,
        threads=threads,
        clock_mhz=clock_mhz,
        bus_bits=bus_bits,
    )


CARDS = {
    card.key: card
    for card in map(_card, (row for row in _ROWS.strip().splitlines() if row[0] != "#"))
}
"""All cards by the shortest of their names."""


def find_card(text: str) -> Card | None:
    """Return the card that a name means, in any usual spelling, or None.

    Raises EstimateError if the card isn't sold with the memory that the name has.
    """
    if (exact := CARDS.get(text.strip().lower())) is not None:
        return exact
    stem, memory_gb = _parts(text)
    models = _MODELS.get(_OTHER_NAMES.get(stem, stem), ())
    if not models and text[-1:].isdigit():  # `a100-40`
        return find_card(f"{text}GB")
    if not models or memory_gb is None:
        return models[0] if models else None
    for card in models:
        if card.sold_gb == memory_gb:
            return card
    sizes = " or ".join(f"{card.sold_gb}GB" for card in models)
    raise OptionError("gpu", f"{text!r}: {models[0].name} is sold with {sizes}")


def smaller_card(need_bytes: float, cards: dict[str, float]) -> Card | None:
    """Return the smallest card with this memory, None if it's hardly smaller than one of these.

    `cards` are those in use: {name: bytes}. Cards sold with the same memory differ by 8 %.
    """
    usable = _cards_like(tuple(sorted(cards)))
    smallest = next((card for card in usable if card.total_bytes >= need_bytes), None)
    least = min(cards.values(), default=0.0)
    return smallest if smallest is not None and smallest.total_bytes < _SMALLER * least else None


def smallest_cards(need_bytes: float, count: int = 3) -> list[Card]:
    """Return a card of each of the smallest sizes that have this memory, with CUDA and bf16."""
    usable, sizes = frozenset(_cards_like(())), dict[int, Card]()
    for card in CARDS.values():
        if card in usable and card.total_bytes >= need_bytes:
            sizes.setdefault(card.sold_gb, card)
    return [card for _, card in sorted(sizes.items())][:count]


@lru_cache(maxsize=1024)
def _cards_like(names: tuple[str, ...]) -> tuple[Card, ...]:
    """Return the cards that could replace all of these, the smallest first.

    They are of the same maker, and no older than each of these or than Ampere: older ones lack
    bf16.
    """
    known = [card for card in map(_known_card, names) if card is not None]
    makers = {card.name.partition(" ")[0] == "AMD" for card in known} or {False}
    if len(makers) > 1:
        return ()
    is_amd = makers.pop()
    oldest = (0, 0) if is_amd else min(_AMPERE, *(card.capability for card in known), _AMPERE)
    alike = (
        card
        for card in CARDS.values()
        if card.capability >= oldest and (card.name.partition(" ")[0] == "AMD") == is_amd
    )
    return tuple(sorted(alike, key=lambda card: card.total_bytes))


def _known_card(name: str) -> Card | None:
    try:
        return find_card(name)
    except EstimateError:
        return None


def card_named(text: str, prefix: str = "") -> Card:
    """Return the card. Raises EstimateError that lists the nearest names.

    prefix: the words before a memory where a memory may be given.
    """
    card = find_card(text)
    if card is not None:
        return card
    several = _SEVERAL.fullmatch(text.strip())
    if several is not None and find_card(several["card"]) is not None:
        count, one = several["count"], several["card"].strip()
        raise OptionError(
            "gpu",
            f"{text!r} is {count} cards, and one of them is estimated: give {one!r}, and "
            f"{count} as its ranks",
        )
    if text.strip().isdigit():
        raise OptionError(
            "gpu",
            f"{text!r} isn't a known card, and a memory needs a unit: write "
            f"{prefix}{text.strip()}GiB, or a card such as {', '.join(_near(text))}",
        )
    raise OptionError(
        "gpu",
        f"{text!r} is not known: did you mean {', '.join(_near(text))}? "
        f"Or give its memory, such as {prefix}24GiB.",
    )


def _parts(text: str) -> tuple[str, int | None]:
    """Return a name without brands and separators, and the GB in it."""
    name = re.sub(r"[\s_\-/,]+", " ", text.strip().lower())
    name = _BRANDS.sub(" ", name)
    sizes = _MEMORY.findall(name)
    stem = re.sub(r"[^0-9a-z]", "", _MEMORY.sub(" ", name))
    return stem, int(sizes[0]) if len(sizes) == 1 else None


def _models() -> dict[str, tuple[Card, ...]]:
    """Return the cards by the stem of their names: the one that a bare name means is the first."""
    models: dict[str, tuple[Card, ...]] = {}
    for card in sorted(CARDS.values(), key=lambda card: len(card.key)):
        for stem in dict.fromkeys((_parts(card.name)[0], _parts(card.key)[0])):
            models[stem] = (*models.get(stem, ()), card)
    return models


_MODELS = _models()


def _near(text: str) -> list[str]:
    stem, _ = _parts(text)
    near = get_close_matches(stem, _MODELS, 4, 0.5) if stem else []
    near += [name for name in _MODELS if stem and stem in name and name not in near]
    return [_MODELS[name][0].key for name in near[:4]] or ["t4", "rtx4090", "a100", "h100"]
