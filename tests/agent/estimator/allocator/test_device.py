"""The device below the allocator: how much it has, and where segments lie."""

from __future__ import annotations

import pytest

from memagent.estimator.allocator import CachingAllocator
from memagent.estimator.allocator.config import AllocatorConfig
from memagent.estimator.allocator.device import Device

MIB = 2**20


def test_others_use_a_part_of_its_memory():
    device = Device(100, 30)
    assert (device.total_bytes, device.limit, device.free_bytes()) == (100, 70, 70)
    assert not device.allocate(71)
    assert device.allocate(70)
    assert (device.used, device.free_bytes()) == (70, 0)
    assert not device.allocate(1)
    device.release(20)
    assert device.free_bytes() == 20
    assert Device(100, 130).free_bytes() == 0


def test_without_a_size_it_is_unlimited():
    device = Device(None, 30)
    assert device.allocate(2**60) and device.allocate(2**60)
    assert (device.free_bytes(), device.used) == (None, 2**61)


def test_each_segment_lies_above_the_last_at_a_multiple_of_2_mib():
    device = Device(None)
    sizes = [2 * MIB, 20 * MIB, 3 * MIB, 1, 2 * MIB + 1, MIB]
    addresses = [device.allocate_segment(size) for size in sizes]
    assert addresses == [0, 2 * MIB, 22 * MIB, 26 * MIB, 28 * MIB, 32 * MIB]
    device.release_segment(22 * MIB, 3 * MIB)
    assert device.used == sum(sizes) - 3 * MIB
    assert device.allocate_segment(MIB) == 34 * MIB
    device.keep_clear_of(MIB, MIB)  # below what is in use
    assert device.place(MIB, expandable=True) == 36 * MIB
    device.keep_clear_of(50 * MIB, 1)
    assert device.allocate_segment(1) == 52 * MIB
    assert Device(5).allocate_segment(6) is None


def test_an_expandable_segment_has_the_addresses_of_the_device_and_an_eighth():
    assert Device(160 * MIB).address_space(20 * MIB) == 180 * MIB
    assert Device(161 * MIB).address_space(20 * MIB) == 200 * MIB
    assert Device(160 * MIB, 100 * MIB).address_space(2 * MIB) == 180 * MIB
    assert Device(None).address_space(2 * MIB) == 2**44
    assert Device(None).address_space(20 * MIB) == -(-(2**44) // (20 * MIB)) * 20 * MIB


@pytest.mark.parametrize("text", ["", "expandable_segments:True"])
def test_a_range_without_memory_is_reserved_again(text):
    allocator = CachingAllocator(AllocatorConfig.parse(text), 100 * MIB)
    for _ in range(3):
        allocator.free(allocator.malloc(70 * MIB))
        allocator.empty_cache()
        assert (allocator.reserved, allocator.all_blocks()) == (0, [])
        assert len(allocator._expandable.ranges) == 0
    assert allocator.stats.num_device_alloc == allocator.stats.num_device_free


def test_a_growing_segment_counts_its_mappings():
    allocator = CachingAllocator(AllocatorConfig.parse("expandable_segments:True"), 100 * MIB)
    blocks = [allocator.malloc(size * MIB) for size in (30, 15, 5)]
    # 40 MiB are mapped for the first, 20 more for the second
    assert (allocator.reserved, allocator.stats.num_device_alloc) == (60 * MIB, 2)
    assert [allocator.address(block) for block in blocks] == [0, 30 * MIB, 45 * MIB]
    allocator.free(blocks[0])
    allocator.empty_cache()
    # of the free 30 MiB, only the first page is whole
    assert (allocator.reserved, allocator.stats.num_device_free) == (40 * MIB, 1)
    assert [(one.address, one.size) for one in allocator.all_blocks() if not one.busy] == [
        (20 * MIB, 10 * MIB), (50 * MIB, 10 * MIB),
    ]  # fmt: skip
    # the hole is mapped again before the end grows
    assert allocator.address(allocator.malloc(25 * MIB)) == 0
    assert (allocator.reserved, allocator.stats.num_device_alloc) == (60 * MIB, 3)
