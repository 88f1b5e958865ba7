"""Cards by the names that people write, and numbers that name no card."""

from __future__ import annotations

import pytest

from memagent.errors import EstimateError
from memagent.estimator.cards import CARDS, card_named, find_card, smaller_card, smallest_cards
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
MORE_SPELLINGS = {
    "rtx4090": "RTX4090-24GB|rtx_4090|4090 24g|GeForce 4090|Nvidia 4090|GeForce RTX™ 4090|1x RTX 4090",
    "rtx3090ti": "RTX 3090 Ti|3090ti",
    "rtx4080super": "4080 super|RTX 4080-Super",
    "rtx4070tisuper": "4070 ti super|RTX 4070 Ti SUPER 16GB",
    "rtx4060ti-16gb": "RTX 4060 Ti 16GB",
    "rtx3080": "RTX 3080 10GB|geforce 3080",
    "rtx3080-12gb": "3080 12gb",
    "rtx2070super": "2070 super",
    "gtx1080ti": "1080 Ti|GTX1080Ti",
    "gtx1080": "GTX 1080",
    "titan-rtx": "Titan RTX|NVIDIA TITAN RTX",
    "titan-v": "Titan V",
    "titan-xp": "TITAN Xp",
    "quadro-rtx8000": "Quadro RTX 8000|RTX 8000",
    "a2000": "RTX A2000",
    "a5000": "A5000 24GB",
    "rtx2000ada": "RTX 2000 Ada",
    "rtxpro6000": "RTX PRO 6000|RTX Pro 6000 Blackwell Workstation Edition",
    "rtx5070ti": "5070 Ti",
    "rtx5080": "RTX 5080 16GB",
    "rtx4090d": "RTX 4090 D|4090D",
    "rtx5060": "RTX 5060",
    "a100": "A100 SXM|A100-SXM-80GB|A100 80GB SXM4|a100-sxm4|1xA100 80GB|A100_80G|A100 (80GB)",
    "a100-40gb": "A100 PCIe 40GB|A100 (40 GB)|a100-40",
    "a10": "A10 24GB|A10 PCIe",
    "a2": "A2|NVIDIA A2",
    "a16": "A16",
    "l4": "L4 24GB|NVIDIA L4 Tensor Core GPU",
    "l40s": "L40S 48GB",
    "h100-nvl": "H100 NVL 94GB",
    "h100": "H100 80GB PCIe|H100-SXM5-80GB|H100 SXM5|h100_sxm",
    "h200": "H200 141GB|H200 NVL",
    "h20": "H20 96GB",
    "gh200": "GH200 96GB|GH200",
    "b200": "B200 180GB",
    "b300": "B300",
    "v100": "V100-SXM2-16GB|Tesla V100",
    "v100-32gb": "V100 SXM3 32GB",
    "v100s": "V100S|V100S-PCIE-32GB",
    "p100": "P100|Tesla P100 16GB",
    "p4": "Tesla P4",
    "k80": "K80|Tesla K80",
    "mi250x": "MI250",
    "mi300x": "MI300X 192GB",
    "mi355x": "MI355X",
    "rx7900xtx": "RX 7900 XTX|7900 XTX",
    "rx7900xt": "RX 7900 XT",
}
"""Written down before they were tried: 58 of 91 were known (8 are errors below)."""
WRITTEN = [
    (text, key)
    for table in (SPELLINGS, MORE_SPELLINGS)
    for key, texts in table.items()
    for text in texts.split("|")
]


def test_there_are_at_least_forty_spellings():
    assert len({text for text, _ in WRITTEN}) >= 100


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
        ("8xH100", "is 8 cards, and one of them is estimated: give 'H100'"),
        ("B200 192GB", "is sold with 180GB"),
        ("mi300", "did you mean mi300x"),
        ("GTX 1660 Ti", "Or give its memory"),
        ("M40", "Or give its memory"),
        ("DGX Spark", "Or give its memory"),
        ("GB10", "Or give its memory"),
        ("Jetson AGX Orin", "Or give its memory"),
        ("voodoo2", "Or give its memory"),
        ("", "is not known"),
    ],
)
def test_an_unknown_card_is_an_error_that_names_the_choice(text, words):
    with pytest.raises(EstimateError, match=words):
        card_named(text)


@pytest.mark.parametrize(
    ("need_gib", "in_use", "smaller"),
    [
        (30, {"a100": 79}, "rtx5090"),
        (13, {"Tesla T4": 14.7}, None),
        (7, {"Tesla T4": 14.7}, "rtx5060"),
        (7, {"Tesla V100-SXM2-32GB": 31.7}, "rtx5060"),
        (30, {"a100": 79, "Tesla T4": 14.7}, None),
        (30, {"AMD Instinct MI300X": 191}, "mi100"),
        (30, {"AMD Instinct MI300X": 191, "a100": 79}, None),
        (5, {"a card of tomorrow": 1000}, "a2000"),
        (79, {"NVIDIA A100-SXM4-80GB": 79.15}, None),
        (500, {"b200": 178}, None),
        (5, {}, None),
    ],
)
def test_a_smaller_card_of_the_same_maker_and_age_has_the_memory(need_gib, in_use, smaller):
    card = smaller_card(need_gib * GIB, {name: gib * GIB for name, gib in in_use.items()})
    assert (card and card.key) == smaller


@pytest.mark.parametrize(
    ("need_gib", "keys"),
    [
        (9.0, ["rtx3080", "rtx3060", "rtx4060ti-16gb"]),
        (53.8, ["a100", "h100-nvl", "rtxpro6000"]),
        (200.0, ["b300"]),
        (300.0, []),
    ],
)
def test_the_smallest_cards_have_the_memory_one_of_each_size(need_gib, keys):
    assert [card.key for card in smallest_cards(need_gib * GIB)] == keys
