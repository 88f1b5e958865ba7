"""Memory besides tensors, against the sizes in torch's source."""

from __future__ import annotations

import json
from statistics import median

import pytest

from benchmarks.estimator.truths import FOLDER
from memagent.estimator.cards import CARDS
from memagent.estimator.devices import (
    CONTEXT_RANGE_BYTES,
    HOPPER_CONTEXT_BYTES,
    HOPPER_CONTEXT_RANGE_BYTES,
    ContextSize,
    context_at_attach,
    context_of,
    cublas_workspace_bytes,
    nccl_buffers,
)
from memagent.units import MIB


@pytest.mark.parametrize(
    ("capability", "setting", "bytes_"),
    [
        ((8, 0), None, 8_519_680),
        ((7, 5), None, 8_519_680),
        (None, None, 8_519_680),
        ((9, 0), None, 32 << 20),
        ((10, 0), None, 32 << 20),
        ((9, 0), ":4096:8", 32 << 20),
        ((8, 0), ":16:8", 128 << 10),
        ((9, 0), ":4096:2:16:8", 8_519_680),
        ((8, 0), "nonsense", 8_519_680),
    ],
)
def test_it_knows_cublas_s_workspace_by_generation_and_setting(capability, setting, bytes_):
    assert cublas_workspace_bytes(capability, setting) == bytes_


def test_it_gives_a_measured_context_no_range_and_any_other_the_whole_one():
    assert context_of(512 << 20) == ContextSize(512 << 20, None)
    assert context_of(None) == ContextSize(820 << 20, CONTEXT_RANGE_BYTES)


def test_hopper_has_the_context_that_was_measured_on_one():
    usual = ContextSize(HOPPER_CONTEXT_BYTES, HOPPER_CONTEXT_RANGE_BYTES)
    assert context_of(None, (9, 0)) == context_at_attach(None, (9, 0)) == usual
    assert context_of(None, (8, 0)) == context_of(None)


def test_a_context_measured_at_attach_may_grow_on_hopper():
    first_kernel, trained = 610 << 20, 764 << 20  # of an H200, by the benchmark's `terms`
    context = context_at_attach(first_kernel, (9, 0))
    assert context.size_bytes == first_kernel
    assert context.interval == (first_kernel, trained)
    assert context_at_attach(first_kernel, (8, 0)) == context_of(first_kernel)


def test_the_recorded_contexts_lie_within_the_range_of_hopper():
    rows = json.loads((FOLDER / "nvidia_h200.json").read_text())["cases"]
    held = [row["outside_bytes"] for row in rows if "outside_bytes" in row]
    low, high = HOPPER_CONTEXT_RANGE_BYTES
    assert low <= min(held) and max(held) <= high
    assert median(held) == pytest.approx(HOPPER_CONTEXT_BYTES, rel=0.03)


def test_published_contexts_lie_within_the_range_of_their_card():
    rows = json.loads((FOLDER / "published_contexts.json").read_text())["rows"]
    within = 0
    for row in rows:
        tensors = row["allocated_gib"] * 1024 + row["unallocated_mib"]
        context = (row["process_gib"] * 1024 - tensors) * MIB
        card = CARDS[row["card"]]
        low, high = context_of(None, card.capability, card.multiprocessors).interval
        within += low <= context <= high
    assert (within, len(rows)) == (13, 16)


def test_only_known_multiprocessors_widen_the_range_of_a_context():
    (small_low, small_high), (large_low, large_high) = (
        context_of(None, (8, 6), number).interval for number in (28, 108)
    )
    assert (small_low, small_high) == (84 * MIB, 1340 * MIB)
    assert (large_low, large_high) == (300 * MIB, 1728 * MIB)
    assert context_of(None, (9, 0), 132).interval == (396 * MIB, 2112 * MIB)


@pytest.mark.parametrize(
    ("ranks", "capability", "sizes_mib"),
    [
        (1, (8, 0), (0, 558, 558)),
        (2, (9, 0), (40, 544, 1600)),
        (8, (8, 0), (40, 688, 1600)),
        (8, None, (40, 688, 1600)),
        (8, (9, 0), (40, 688, 3904)),
        (8, (10, 0), (40, 688, 3904)),
    ],
)
def test_buffers_of_nccl_are_those_of_public_measurements(ranks, capability, sizes_mib):
    assert nccl_buffers(ranks, capability) == tuple(size * MIB for size in sizes_mib)
