"""Peaks of phases by resets of the counters, without an effect on other readers.

The numbers are those of the module's docstring.
"""

from __future__ import annotations

import random

import pytest
import torch
from torch.cuda import max_memory_allocated  # bound before any probe: must be correct even so

from memagent.probe.peaks import shared_counters

MIB = 2**20


@pytest.fixture
def counters(cuda_allocator):
    counters = shared_counters(torch._C)
    counters.open()
    yield counters
    counters.close()


def test_1_each_read_returns_the_peak_since_the_last_one(cuda_allocator, counters):
    cuda_allocator.allocate(10 * MIB)
    cuda_allocator.free(10 * MIB)
    assert counters.read_and_reset(0)[:2] == (10 * MIB, 10 * MIB)
    cuda_allocator.allocate(4 * MIB)
    assert counters.read_and_reset(0)[:2] == (4 * MIB, 10 * MIB)
    cuda_allocator.free(4 * MIB)
    assert counters.read_and_reset(0)[0] == 4 * MIB
    assert counters.read_and_reset(0)[0] == 0


def user_view() -> tuple:
    """Return all peaks that torch reports to a user."""
    stats = torch.cuda.memory_stats(0)
    return (
        max_memory_allocated(0),
        torch.cuda.max_memory_reserved(0),
        torch.accelerator.max_memory_allocated(0),
        dict(stats.items()),
        torch.cuda.memory_summary(0),
    )


def test_2_and_3_a_user_reads_the_same_with_and_without_memagent(cuda_allocator):
    """Run a random program twice, with and without an agent: allocations, reads, resets."""

    def life(agent: bool) -> list[tuple]:
        random.seed(11)
        allocator = type(cuda_allocator)()
        cuda_allocator._stats, blocks, peaks = allocator._stats, [], []
        counters = shared_counters(torch._C)
        if agent:
            counters.open()
        for _ in range(600):
            what = random.random()
            if what < 0.4:
                blocks.append(
                    cuda_allocator.allocate(random.choice((512, 4096, 3 * MIB, 40 * MIB)))
                )
            elif what < 0.75 and blocks:
                cuda_allocator.free(blocks.pop(random.randrange(len(blocks))))
            elif what < 0.78:
                torch.cuda.reset_peak_memory_stats(0)
            elif what < 0.81:
                torch.accelerator.reset_peak_memory_stats(0)
            elif what < 0.86:
                peaks.append(user_view())
            if agent and random.Random(len(blocks)).random() < 0.5:
                counters.read_and_reset(0)
        peaks.append(user_view())
        if agent:
            counters.close()
            peaks.append(user_view())
        else:
            peaks.append(user_view())
        return peaks

    bare = life(agent=False)
    watched = life(agent=True)
    assert len(bare) > 20
    assert watched == bare


def test_3_a_reset_by_the_user_does_not_lose_our_phases_peak(cuda_allocator, counters):
    cuda_allocator.allocate(30 * MIB)
    cuda_allocator.free(30 * MIB)
    torch.cuda.reset_peak_memory_stats(0)
    assert max_memory_allocated(0) == 0
    assert counters.read_and_reset(0)[0] == 30 * MIB
    assert max_memory_allocated(0) == 0
    assert counters.read_and_reset(0)[0] == 0


def test_4_saved_peaks_stay_until_the_next_reset(cuda_allocator):
    original = torch._C._cuda_memoryStats
    counters = shared_counters(torch._C)
    counters.open()
    assert torch._C._cuda_memoryStats is not original
    cuda_allocator.allocate(30 * MIB)
    cuda_allocator.free(30 * MIB)
    counters.read_and_reset(0)
    counters.close()
    assert max_memory_allocated(0) == 30 * MIB
    torch.cuda.reset_peak_memory_stats(0)
    assert max_memory_allocated(0) == 0
    assert torch._C._cuda_memoryStats is original


def test_4_wrappers_go_at_once_without_saved_peaks_and_never_over_another_library_s(
    cuda_allocator, monkeypatch
):
    original = torch._C._cuda_memoryStats
    counters = shared_counters(torch._C)
    counters.open()
    counters.close()
    assert torch._C._cuda_memoryStats is original
    counters.open()
    wrapper = torch._C._cuda_memoryStats
    theirs = lambda device: wrapper(device)  # noqa: E731
    monkeypatch.setattr(torch._C, "_cuda_memoryStats", theirs)
    counters.close()
    assert torch._C._cuda_memoryStats is theirs
    cuda_allocator.allocate(MIB)
    assert max_memory_allocated(0) == MIB


def test_two_runs_in_one_process_share_the_counters(cuda_allocator, counters):
    second = shared_counters(torch._C)
    assert second is counters
    second.open()
    second.close()
    cuda_allocator.allocate(5 * MIB)
    cuda_allocator.free(5 * MIB)
    assert counters.read_and_reset(0)[0] == 5 * MIB
    assert max_memory_allocated(0) == 5 * MIB
