"""Cards by the names that people write, and numbers that name no card."""

from __future__ import annotations

import pytest

from memagent.errors import EstimateError
from memagent.estimator.cards import CARDS, card_named, find_card
from memagent.units import GIB, MIB

SPELLINGS = {
    "rtx4090": "4090|RTX 4090|rtx-4090|RTX4090|GeForce RTX 4090|NVIDIA GeForce RTX 4090|rtx 4090 24gb",
    "a100": "a100|A100-80GB|a100 80g|A100 80 GB|NVIDIA A100-SXM4-80GB|NVIDIA A100 80GB PCIe",
    "a100-40gb": "A100-40GB|a100 40g|NVIDIA A100-SXM4-40GB|A100-PCIE-40GB",
    "h100": "H100|H100 SXM|h100-80gb|H100 PCIe|NVIDIA H100 80GB HBM3",
    "t4": "T4|Tesla T4|tesla-t4|T4 16GB",
    "v100-32gb": "V100-32GB|Tesla V100-SXM2-32GB",
    "v100": "V100|v100 16gb",
    "a6000": "a6000|RTX A6000|NVIDIA RTX A6000",
    "rtx6000ada": "RTX 6000 Ada|NVIDIA RTX 6000 Ada Generation",
    "l40": "l40|NVIDIA L40",
    "l40s": "L40S|nvidia l40s",
    "rtx3060": "3060|RTX 3060|rtx 3060 12gb",
    "rtx3090": "3090|RTX_3090",
    "rtx2080ti": "2080ti|RTX 2080 Ti",
    "rtx5090": "5090|RTX 5090",
    "mi300x": "MI300X|AMD Instinct MI300X|amd mi300x",
    "a10g": "A10G|nvidia a10g",
    "h200": "H200 SXM|NVIDIA H200",
}
WRITTEN = [(text, key) for key, texts in SPELLINGS.items() for text in texts.split("|")]


def test_there_are_at_least_forty_spellings():
    assert len({text for text, _ in WRITTEN}) >= 40


@pytest.mark.parametrize(("text", "key"), WRITTEN)
def test_it_knows_a_card_as_people_write_it(text, key):
    assert card_named(text).key == key


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_every_card_is_found_by_its_key_and_its_drivers_name_and_memory(card):
    assert find_card(card.key) is card
    assert find_card(f"{card.name} {card.sold_gb}GB" if "GB" not in card.name else card.name) in (
        card,
        find_card(card.name),
    )


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_every_card_has_whole_pages_and_what_its_maker_sells_at_most(card):
    assert card.total_bytes % (2 * MIB) == 0
    assert 0.88 < card.total_bytes / (card.sold_gb * GIB) <= 1.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("24", "write 24GiB, or a card"),
        ("4091", "rtx4090"),
        ("a100 60gb", "is sold with 80GB or 40GB"),
        ("a6oo0", "did you mean a6000"),
        ("rtx 6000", "rtx6000ada"),
        ("RTX 4090 Laptop GPU", "did you mean rtx4090"),
        ("voodoo2", "Or give its memory"),
        ("", "is not known"),
    ],
)
def test_an_unknown_card_is_an_error_that_names_the_choice(text, words):
    with pytest.raises(EstimateError, match=words):
        card_named(text)
