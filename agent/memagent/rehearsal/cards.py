"""GPUs as their drivers describe them: what a rehearsal shows to torch.

`estimator.devices` has each card's memory as sold and its capability; this adds the rest. Memory is
what `torch.cuda.mem_get_info` gives as the total on such a card: published out-of-memory messages
have it ("total capacity of 79.15 GiB"), to two places.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from memagent.errors import RehearsalError
from memagent.estimator.devices import GPUS
from memagent.units import GIB, KIB, MIB

PAGE_BYTES = 2 * MIB
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(GiB|GB|MiB|MB)", re.IGNORECASE)
UNITS = {"gib": GIB, "gb": 10**9, "mib": MIB, "mb": 10**6}


@dataclass(frozen=True)
class Card:
    """A GPU: its name, the memory that its driver offers, and the sizes of its parts."""

    name: str
    total_bytes: int
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int
    """Shared memory of a multiprocessor; a block gets 1 KiB less."""
    l2_bytes: int
    threads: int
    clock_mhz: int
    bus_bits: int


def _card(
    key: str, name: str, total_gib: float, parts: tuple[int, int, int, int, int, int]
) -> Card:
    multiprocessors, shared_kib, l2_mib, threads, clock_mhz, bus_bits = parts
    return Card(
        name=name,
        total_bytes=int(total_gib * GIB) // PAGE_BYTES * PAGE_BYTES,
        capability=GPUS[key].capability,
        multiprocessors=multiprocessors,
        shared_bytes=shared_kib * KIB,
        l2_bytes=l2_mib * MIB,
        threads=threads,
        clock_mhz=clock_mhz,
        bus_bits=bus_bits,
    )


_ROWS: dict[str, tuple[str, float, tuple[int, int, int, int, int, int]]] = {
    # multiprocessors, shared KiB, L2 MiB, threads, MHz, bits of the memory bus
    "t4": ("Tesla T4", 14.74, (40, 64, 4, 1024, 1590, 256)),
    "v100": ("Tesla V100-SXM2-16GB", 15.77, (80, 96, 6, 2048, 1530, 4096)),
    "v100-32gb": ("Tesla V100-SXM2-32GB", 31.74, (80, 96, 6, 2048, 1530, 4096)),
    "rtx3090": ("NVIDIA GeForce RTX 3090", 23.58, (82, 100, 6, 1536, 1695, 384)),
    "rtx4090": ("NVIDIA GeForce RTX 4090", 23.53, (128, 100, 72, 1536, 2520, 384)),
    "a10": ("NVIDIA A10", 22.20, (72, 100, 6, 1536, 1695, 384)),
    "l4": ("NVIDIA L4", 22.03, (58, 100, 48, 1536, 2040, 192)),
    "l40s": ("NVIDIA L40S", 44.39, (142, 100, 96, 1536, 2520, 384)),
    "a100-40gb": ("NVIDIA A100-SXM4-40GB", 39.39, (108, 164, 40, 2048, 1410, 5120)),
    "a100": ("NVIDIA A100-SXM4-80GB", 79.15, (108, 164, 40, 2048, 1410, 5120)),
    "h100": ("NVIDIA H100 80GB HBM3", 79.11, (132, 228, 50, 2048, 1980, 5120)),
    "h200": ("NVIDIA H200", 139.80, (132, 228, 60, 2048, 1980, 6144)),
    "b200": ("NVIDIA B200", 178.35, (148, 228, 126, 2048, 1965, 8192)),
}
CARDS = {key: _card(key, *row) for key, row in _ROWS.items()}


def card_named(text: str) -> Card:
    """Return the card. `NAME:24GiB` has that memory; an unknown NAME is like an A100 otherwise."""
    name, _, size = text.partition(":")
    key = name.lower().removesuffix("-80gb")
    known = CARDS.get(key)
    if not size:
        if known is None:
            raise RehearsalError(
                f"GPU {name!r} is not known: use one of {', '.join(CARDS)}, or NAME:24GiB."
            )
        return known
    total = parse_size(size)
    return replace(known or replace(CARDS["a100"], name=name), total_bytes=total)


def parse_size(text: str) -> int:
    """Return the bytes of `24GiB` in whole pages. Raises RehearsalError."""
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise RehearsalError(f"{text!r} is not a size: write it as 24GiB or 24000MB.")
    return int(float(match[1]) * UNITS[match[2].lower()]) // PAGE_BYTES * PAGE_BYTES
