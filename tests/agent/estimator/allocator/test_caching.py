"""Each rule of torch's allocator, with sizes and addresses derived by hand from the C++.

See docs/allocator.md.
"""

from __future__ import annotations

import pytest

from memagent.errors import EstimateError
from memagent.estimator.allocator import AllocatorConfig, CachingAllocator, SimulatedOutOfMemory
from memagent.estimator.allocator.config import next_division, round_size, segment_size

MIB = 2**20
DEFAULT = AllocatorConfig()


def allocator(
    text: str = "", total_mib: int | None = None, version: str | None = None
) -> CachingAllocator:
    return CachingAllocator(
        AllocatorConfig.parse(text, version), None if total_mib is None else total_mib * MIB
    )


def free_blocks(simulated: CachingAllocator) -> list[tuple[int, int]]:
    return [(block.address, block.size) for block in simulated.all_blocks() if not block.busy]


# Rounding


@pytest.mark.parametrize(
    ("size", "block"),
    [
        (1, 512),
        (511, 512),
        (512, 512),
        (513, 1024),
        (37_632, 37_888),
        (MIB, MIB),
        (MIB + 1, MIB + 512),
    ],
)
def test_it_rounds_up_to_512_bytes(size, block):
    assert round_size(size, DEFAULT) == block
    simulated = allocator()
    assert simulated.block_size(simulated.malloc(size)) == block


@pytest.mark.parametrize(
    ("size", "divisions", "rounded"),
    [
        (1200, 4, 1280),
        (1024, 4, 1024),
        (1281, 4, 1536),
        (1793, 4, 2048),
        (84 * MIB, 4, 96 * MIB),
        (84 * MIB, 8, 88 * MIB),
    ],
)
def test_it_rounds_up_to_a_division_between_powers_of_two(size, divisions, rounded):
    # 1200 in 4 is the example in torch's source; torch's test of the setting allocates 84 MiB.
    assert next_division(size, divisions) == rounded


def test_divisions_do_not_apply_to_sizes_up_to_512_bytes_each():
    config = AllocatorConfig.parse("roundup_power2_divisions:4")
    assert round_size(2048, config) == 2048
    assert round_size(1500, config) == 1536
    assert round_size(2049, config) == 2560


def test_divisions_of_the_list_form_go_by_the_size_of_the_request():
    config = AllocatorConfig.parse("roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]")
    assert round_size(84 * MIB, config) == 88 * MIB
    assert round_size(400 * MIB, config) == 448 * MIB
    assert round_size(130 * MIB, config) == 192 * MIB
    assert round_size(3000 * MIB + 1, config) == 3000 * MIB + 512


# Pools and segments


@pytest.mark.parametrize(
    ("size_mib", "segment_mib"),
    [(0.5, 2), (1, 2), (1.5, 20), (9.999, 20), (10, 10), (10.5, 12), (21, 22), (300, 300)],
)
def test_it_allocates_segments_of_2_mib_20_mib_or_multiples_of_2_mib(size_mib, segment_mib):
    size = int(size_mib * MIB)
    simulated = allocator()
    simulated.malloc(size)
    assert (
        simulated.reserved == segment_mib * MIB == segment_size(round_size(size, DEFAULT), DEFAULT)
    )
    assert simulated.stats.segment.all.current == 1


def test_a_request_of_exactly_1_mib_is_small_and_a_byte_more_is_large():
    simulated = allocator()
    simulated.malloc(MIB)
    assert (
        simulated.stats.segment.small_pool.current,
        simulated.stats.segment.large_pool.current,
    ) == (1, 0)
    simulated.malloc(MIB + 1)
    assert (
        simulated.stats.segment.small_pool.current,
        simulated.stats.segment.large_pool.current,
    ) == (1, 1)


def test_the_large_segment_can_be_configured():
    simulated = allocator("large_segment_size_mb:64")
    simulated.malloc(5 * MIB)
    assert simulated.reserved == 64 * MIB
    simulated.malloc(10 * MIB)  # would get a segment of its size, but the first has room
    assert simulated.reserved == 64 * MIB


def test_small_and_large_blocks_never_share_a_segment():
    simulated = allocator()
    simulated.free(simulated.malloc(20 * MIB))
    simulated.malloc(1000)
    assert simulated.reserved == 22 * MIB


def test_blocks_stay_with_their_stream():
    simulated = allocator()
    simulated.free(simulated.malloc(30 * MIB, stream=0))
    simulated.malloc(30 * MIB, stream=7)
    assert simulated.reserved == 60 * MIB
    simulated.malloc(30 * MIB, stream=0)
    assert simulated.reserved == 60 * MIB


# Best fit


def test_it_takes_the_smallest_free_block_that_fits():
    simulated = allocator()
    blocks = [simulated.malloc(size * MIB) for size in (40, 24, 32)]
    for block in blocks:
        simulated.free(block)
    assert simulated.address(simulated.malloc(23 * MIB)) == 40 * MIB


def test_of_equal_blocks_it_takes_the_lowest_address():
    simulated = allocator()
    blocks = [simulated.malloc(30 * MIB) for _ in range(3)]
    for block in reversed(blocks):
        simulated.free(block)
    assert [simulated.address(simulated.malloc(30 * MIB)) for _ in range(3)] == [
        0,
        30 * MIB,
        60 * MIB,
    ]


def test_it_prefers_a_hole_that_fits_to_a_new_segment():
    simulated = allocator()
    hole, _ = simulated.malloc(4 * MIB), simulated.malloc(4 * MIB)
    simulated.free(hole)
    assert simulated.address(simulated.malloc(3 * MIB)) == 0


# Splitting


def test_the_small_pool_splits_off_512_bytes():
    simulated = allocator()
    simulated.malloc(MIB)
    simulated.malloc(MIB - 512)
    assert free_blocks(simulated) == [(2 * MIB - 512, 512)]
    assert simulated.address(simulated.malloc(1)) == 2 * MIB - 512
    assert simulated.reserved == 2 * MIB


def test_the_large_pool_keeps_a_rest_of_exactly_1_mib_with_the_block():
    simulated = allocator()
    block = simulated.malloc(19 * MIB)  # a segment of 20 MiB: 1 MiB is left
    assert simulated.reserved == 20 * MIB
    assert simulated.block_size(block) == 20 * MIB == simulated.allocated
    assert simulated.stats.requested_bytes.all.current == 19 * MIB


def test_the_large_pool_splits_off_more_than_1_mib():
    simulated = allocator()
    block = simulated.malloc(9 * MIB)
    assert simulated.block_size(block) == 9 * MIB
    assert free_blocks(simulated) == [(9 * MIB, 11 * MIB)]
    second = simulated.malloc(10 * MIB - 512)  # 1 MiB and 512 bytes are left: a free block
    assert simulated.block_size(second) == 10 * MIB - 512
    assert free_blocks(simulated) == [(19 * MIB - 512, MIB + 512)]


def test_a_reused_block_keeps_its_slack_and_allocated_counts_it():
    simulated = allocator()
    simulated.free(simulated.malloc(30 * MIB))
    block = simulated.malloc(29 * MIB + 1)
    assert simulated.block_size(block) == 30 * MIB
    assert simulated.allocated == 30 * MIB
    assert simulated.stats.requested_bytes.all.current == 29 * MIB + 1
    simulated.free(block)
    assert simulated.allocated == simulated.stats.requested_bytes.all.current == 0


# Merging


def test_free_neighbors_merge_on_both_sides():
    simulated = allocator()
    left, middle, right = (simulated.malloc(4 * MIB) for _ in range(3))
    simulated.free(left)
    simulated.free(right)  # merges with the unused 8 MiB
    assert free_blocks(simulated) == [(0, 4 * MIB), (8 * MIB, 12 * MIB)]
    simulated.free(middle)
    assert free_blocks(simulated) == [(0, 20 * MIB)]


def test_neighbouring_segments_do_not_merge():
    simulated = allocator()
    blocks = [simulated.malloc(30 * MIB) for _ in range(2)]
    for block in blocks:
        simulated.free(block)
    assert free_blocks(simulated) == [(0, 30 * MIB), (30 * MIB, 30 * MIB)]
    simulated.malloc(60 * MIB)
    assert simulated.reserved == 120 * MIB


# Counting


def test_inactive_split_counts_the_free_parts_of_split_segments():
    simulated = allocator()
    stats = simulated.stats

    def inactive():
        return stats.inactive_split.all.current, stats.inactive_split_bytes.all.current // MIB

    first = simulated.malloc(5 * MIB)
    assert inactive() == (1, 15)
    second = simulated.malloc(4 * MIB)
    assert inactive() == (1, 11)
    simulated.free(first)
    assert inactive() == (2, 16)
    third = simulated.malloc(5 * MIB)  # the exact hole: all of it becomes active
    assert inactive() == (1, 11)
    simulated.free(second)
    assert inactive() == (1, 15)
    simulated.free(third)  # the segment is one block again, which isn't split
    assert inactive() == (0, 0)
    assert stats.inactive_split_bytes.all.peak == 16 * MIB


def test_peaks_stay_and_can_be_reset():
    simulated = allocator()
    simulated.free(simulated.malloc(100 * MIB))
    assert (simulated.allocated, simulated.peak_allocated, simulated.peak_reserved) == (
        0,
        100 * MIB,
        100 * MIB,
    )
    simulated.reset_peak()
    assert (simulated.peak_allocated, simulated.peak_reserved) == (0, 100 * MIB)


def test_statistics_have_the_names_of_memory_stats():
    simulated = allocator()
    simulated.free(simulated.malloc(3 * MIB))
    simulated.malloc(700)
    stats = simulated.stats.as_dict()
    assert stats["allocated_bytes.all.peak"] == 3 * MIB
    assert stats["allocated_bytes.small_pool.current"] == 1024
    assert stats["allocated_bytes.large_pool.freed"] == 3 * MIB
    assert stats["requested_bytes.all.allocated"] == 3 * MIB + 700
    assert stats["allocation.all.current"] == stats["active.all.current"] == 1
    assert stats["segment.all.current"] == stats["num_device_alloc"] == 2
    assert stats["num_ooms"] == stats["num_alloc_retries"] == 0


def test_a_free_that_waits_for_a_stream_is_active_but_not_allocated():
    simulated = allocator()
    block = simulated.malloc(30 * MIB)
    simulated.request_free(block)
    assert (simulated.allocated, simulated.stats.active_bytes.all.current) == (0, 30 * MIB)
    simulated.malloc(30 * MIB)
    assert simulated.reserved == 60 * MIB  # the waiting block could not be reused
    simulated.complete_free(block)
    simulated.complete_free(block)  # a second call does nothing
    assert simulated.stats.active_bytes.all.current == 30 * MIB


# The device is full


def test_empty_cache_gives_back_whole_segments_only():
    simulated = allocator()
    keep, large = simulated.malloc(4 * MIB), simulated.malloc(30 * MIB)
    simulated.free(large)
    simulated.empty_cache()
    assert simulated.reserved == 20 * MIB
    simulated.free(keep)
    simulated.empty_cache()
    assert simulated.reserved == simulated.stats.segment.all.current == 0


def test_a_full_device_is_retried_after_giving_back_cached_segments():
    simulated = allocator(total_mib=100)
    simulated.free(simulated.malloc(60 * MIB))
    simulated.malloc(70 * MIB)
    assert (simulated.reserved, simulated.stats.num_alloc_retries) == (70 * MIB, 1)
    assert simulated.peak_reserved == 70 * MIB


def test_a_retry_completes_frees_that_waited_for_a_stream():
    simulated = allocator(total_mib=100)
    block = simulated.malloc(60 * MIB)
    simulated.request_free(block)
    simulated.malloc(70 * MIB)
    assert simulated.reserved == 70 * MIB


def test_split_segments_cannot_be_released_and_the_request_fails():
    simulated = allocator(total_mib=60)
    first, second = simulated.malloc(4 * MIB), simulated.malloc(4 * MIB)
    simulated.free(first)
    with pytest.raises(SimulatedOutOfMemory) as caught:
        simulated.malloc(50 * MIB)
    assert (caught.value.allocated, caught.value.reserved, caught.value.free) == (
        4 * MIB,
        20 * MIB,
        40 * MIB,
    )
    assert (caught.value.size, caught.value.segment) == (50 * MIB, 50 * MIB)
    assert (simulated.stats.num_ooms, simulated.stats.num_alloc_retries) == (1, 1)
    simulated.free(second)  # the failed request changed nothing
    simulated.malloc(50 * MIB)


def test_memory_of_other_processes_is_not_available():
    simulated = CachingAllocator(total_bytes=100 * MIB, outside_bytes=50 * MIB)
    simulated.malloc(40 * MIB)
    with pytest.raises(SimulatedOutOfMemory):
        simulated.malloc(12 * MIB)


def test_the_memory_fraction_limits_reserved_memory():
    simulated = allocator("per_process_memory_fraction:0.5", total_mib=100)
    simulated.malloc(40 * MIB)
    with pytest.raises(SimulatedOutOfMemory):
        simulated.malloc(11 * MIB)  # 12 MiB more would be 52 of 50
    simulated.malloc(10 * MIB)


@pytest.mark.parametrize("size", [0, -1])
def test_zero_bytes_cannot_be_allocated(size):
    with pytest.raises(EstimateError, match="can't allocate"):
        allocator().malloc(size)


def test_a_block_cannot_be_freed_twice():
    simulated = allocator()
    block = simulated.malloc(1)
    simulated.free(block)
    with pytest.raises(EstimateError, match="not allocated"):
        simulated.free(block)


# max_split_size_mb


def test_blocks_of_the_maximal_split_size_serve_no_smaller_request():
    simulated = allocator("max_split_size_mb:40")
    simulated.free(simulated.malloc(50 * MIB))
    simulated.malloc(30 * MIB)
    assert simulated.reserved == 80 * MIB


def test_blocks_of_the_maximal_split_size_are_not_split():
    simulated = allocator("max_split_size_mb:40")
    simulated.free(simulated.malloc(58 * MIB))
    block = simulated.malloc(40 * MIB)  # 18 MiB more than requested, which is less than 20
    assert simulated.block_size(block) == 58 * MIB
    assert (
        simulated.stats.oversize_allocations.current
        == simulated.stats.oversize_segments.current
        == 1
    )


def test_an_oversize_block_may_be_less_than_20_mib_too_large():
    simulated = allocator("max_split_size_mb:40")
    simulated.free(simulated.malloc(60 * MIB))
    simulated.malloc(40 * MIB)
    assert simulated.reserved == 100 * MIB


def test_the_rounding_of_oversize_blocks_can_be_configured():
    simulated = allocator("max_split_size_mb:40,max_non_split_rounding_mb:30")
    simulated.free(simulated.malloc(60 * MIB))
    simulated.malloc(40 * MIB)
    assert simulated.reserved == 60 * MIB


def test_a_full_device_first_gets_back_one_oversize_block_that_is_enough():
    simulated = allocator("max_split_size_mb:40", total_mib=200)
    for block in [simulated.malloc(size * MIB) for size in (30, 50, 90)]:
        simulated.free(block)
    simulated.malloc(65 * MIB)  # releases the 90 MiB without a retry; the 50 and 30 stay cached
    assert (simulated.reserved, simulated.stats.num_alloc_retries) == ((30 + 50 + 66) * MIB, 0)


def test_a_full_device_gets_back_the_largest_oversize_blocks_when_no_single_one_is_enough():
    simulated = allocator("max_split_size_mb:40", total_mib=200)
    for block in [simulated.malloc(size * MIB) for size in (30, 50, 44, 60)]:
        simulated.free(block)
    simulated.malloc(100 * MIB)  # releases 60 and 50; 44 and 30 stay
    assert (simulated.reserved, simulated.stats.num_alloc_retries) == ((30 + 44 + 100) * MIB, 0)


# garbage_collection_threshold


def test_garbage_collection_gives_back_the_segments_idle_longest():
    simulated = allocator("garbage_collection_threshold:0.5", total_mib=200)
    old = simulated.malloc(50 * MIB)
    young = simulated.malloc(60 * MIB)
    simulated.free(old)
    for _ in range(5):  # five searches while the first is idle
        simulated.free(simulated.malloc(24 * MIB, stream=1))
    simulated.free(young)
    # 134 MiB of 200 are reserved, 34 more than the threshold. Segments that were idle for at least
    # the average are released: the first one (6 searches; the others 1 and 0).
    simulated.malloc(70 * MIB)
    assert simulated.reserved == (60 + 24 + 70) * MIB
    assert simulated.stats.num_alloc_retries == 0


def test_without_a_limit_on_the_process_nothing_is_collected_before_torch_2_10():
    simulated = allocator("garbage_collection_threshold:0.5", total_mib=200, version="2.9")
    simulated.free(simulated.malloc(110 * MIB))
    simulated.malloc(80 * MIB, stream=1)
    assert simulated.reserved == 190 * MIB


# expandable_segments


def test_an_expandable_segment_maps_pages_of_20_mib():
    simulated = allocator("expandable_segments:True")
    simulated.malloc(5 * MIB)
    assert (simulated.reserved, simulated.stats.segment.all.current) == (20 * MIB, 0)
    simulated.malloc(300 * MIB)  # 15 MiB are free; 285 more need 15 pages
    assert simulated.reserved == 320 * MIB


def test_an_expandable_segment_of_small_blocks_maps_pages_of_2_mib():
    simulated = allocator("expandable_segments:True")
    blocks = [simulated.malloc(MIB) for _ in range(3)]
    assert simulated.reserved == 4 * MIB
    assert [simulated.address(block) for block in blocks] == [0, MIB, 2 * MIB]


def test_expandable_blocks_lie_side_by_side_and_merge_over_pages():
    simulated = allocator("expandable_segments:True")
    blocks = [simulated.malloc(30 * MIB) for _ in range(3)]
    assert [simulated.address(block) for block in blocks] == [0, 30 * MIB, 60 * MIB]
    for block in blocks:
        simulated.free(block)
    assert simulated.address(simulated.malloc(100 * MIB)) == 0
    assert simulated.reserved == 100 * MIB


def test_expandable_blocks_are_split_from_512_bytes():
    simulated = allocator("expandable_segments:True")
    simulated.malloc(20 * MIB - 512)
    assert free_blocks(simulated) == [(20 * MIB - 512, 512)]


def test_an_expandable_segment_gives_back_whole_pages_from_its_middle():
    simulated = allocator("expandable_segments:True")
    first, middle, last = (simulated.malloc(size * MIB) for size in (10, 70, 20))
    simulated.free(middle)  # 10 to 80 MiB: the pages from 20 to 80 are entirely free
    simulated.empty_cache()
    assert simulated.reserved == 40 * MIB
    assert free_blocks(simulated) == [(10 * MIB, 10 * MIB)]
    simulated.malloc(50 * MIB)  # grows at the lowest address: 10 MiB are free, two pages get mapped
    assert simulated.reserved == 80 * MIB
    for block in (first, last):
        simulated.free(block)


def test_expandable_segments_have_no_inactive_split():
    simulated = allocator("expandable_segments:True")
    simulated.malloc(5 * MIB)
    assert simulated.stats.inactive_split_bytes.all.peak == 0


def test_an_expandable_request_prefers_a_hole_to_the_end_that_can_grow():
    simulated = allocator("expandable_segments:True")
    hole, _ = (
        simulated.malloc(25 * MIB),
        simulated.malloc(5 * MIB),
    )  # 10 MiB are left of the second page, then it can grow
    simulated.free(hole)
    assert simulated.address(simulated.malloc(8 * MIB)) == 0


def test_a_full_device_unmaps_free_pages_of_other_streams_and_retries():
    simulated = allocator("expandable_segments:True", total_mib=100)
    simulated.free(simulated.malloc(60 * MIB, stream=1))
    simulated.malloc(70 * MIB)
    assert (simulated.reserved, simulated.stats.num_alloc_retries) == (80 * MIB, 1)


def test_expandable_segments_fit_where_fixed_ones_fragment():
    def two_batches(text):
        simulated = allocator(text, total_mib=400)
        for batch in (30, 31, 32):
            blocks = [simulated.malloc(batch * MIB) for _ in range(4)]
            for block in blocks:
                simulated.free(block)
        return simulated.reserved // MIB

    assert two_batches("expandable_segments:False") == 4 * 30 + 4 * 32
    assert two_batches("expandable_segments:True") == 140


# Published recordings


def test_it_repeats_the_addresses_published_for_the_first_tensors_of_a_resnet():
    # zdevito.github.io, "Visualizing PyTorch memory usage over time" (2022): one segment of
    # 2.0 MiB, then 36.8 KiB (37,632 bytes requested) at 0 and buffers of 256 and 8 bytes at these
    # offsets.
    simulated = allocator()
    blocks = [simulated.malloc(size) for size in (37_632, 256, 256, 256, 256, 8)]
    assert [simulated.address(block) for block in blocks] == [
        0,
        37_888,
        38_400,
        38_912,
        39_424,
        39_936,
    ]
    assert simulated.reserved == 2_097_152
