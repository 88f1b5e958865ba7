"""What goes back to the device: oversize blocks on demand, idle segments, and old ones."""

from __future__ import annotations

from memagent.estimator.allocator import AllocatorConfig, CachingAllocator

MIB = 2**20


def cached(text: str, total_mib: int, *sizes_mib: int, version: str | None = None):
    """Return an allocator whose freed segments have these sizes."""
    allocator = CachingAllocator(AllocatorConfig.parse(text, version), total_mib * MIB)
    for block in [allocator.malloc(size * MIB) for size in sizes_mib]:
        allocator.free(block)
    return allocator


def segments(allocator: CachingAllocator) -> list[int]:
    return sorted(block.size // MIB for block in allocator.all_blocks() if not block.busy)


def test_a_block_of_the_maximal_split_size_is_oversize():
    allocator = cached("max_split_size_mb:40", 200, 38, 40)
    stats = allocator.stats
    assert (stats.oversize_segments.current, stats.oversize_segments.total) == (1, 1)
    assert (stats.oversize_allocations.current, stats.oversize_allocations.total) == (0, 1)
    allocator.empty_cache()
    assert stats.oversize_segments.current == 0
    assert (stats.num_device_alloc, stats.num_device_free) == (2, 2)
    assert stats.num_sync_all_streams == 1


def test_one_oversize_block_of_exactly_the_size_is_enough():
    allocator = cached("max_split_size_mb:40", 100, 30, 44)
    allocator.malloc(44 * MIB, stream=1)  # nothing is cached for this stream: everything goes
    assert (segments(allocator), allocator.stats.num_alloc_retries) == ([], 1)
    allocator = cached("max_split_size_mb:40,max_non_split_rounding_mb:20", 120, 30, 66)
    allocator.malloc(42 * MIB)  # the 66 are too many to be reused, and enough to be released
    assert (segments(allocator), allocator.stats.num_alloc_retries) == ([30], 0)


def test_a_small_request_releases_an_oversize_block():
    allocator = cached("max_split_size_mb:40", 100, 30, 40, 20)
    for _ in range(2):
        allocator.malloc(20 * MIB)
    assert (segments(allocator), allocator.stats.num_alloc_retries) == ([10, 40], 0)
    allocator.malloc(20 * MIB)  # at least an oversize block goes: the smallest that is one
    assert (segments(allocator), allocator.stats.num_alloc_retries) == ([10], 0)
    assert allocator.stats.oversize_segments.current == 0


def test_without_oversize_blocks_every_idle_segment_goes():
    allocator = cached("max_split_size_mb:40", 100, 38, 38)
    allocator.malloc(60 * MIB)
    assert (segments(allocator), allocator.stats.num_alloc_retries) == ([], 1)
    allocator = cached("", 100, 38, 38)
    allocator.malloc(60 * MIB)
    assert (segments(allocator), allocator.stats.num_alloc_retries) == ([], 1)


def test_not_enough_oversize_blocks_go_and_then_every_idle_segment():
    allocator = cached("max_split_size_mb:40", 130, 30, 44, 50)
    allocator.malloc(100 * MIB)
    assert (segments(allocator), allocator.stats.num_alloc_retries) == ([], 1)


def test_split_segments_stay():
    allocator = CachingAllocator(AllocatorConfig(), 100 * MIB)
    first, second = allocator.malloc(5 * MIB), allocator.malloc(5 * MIB)
    allocator.free(first)
    allocator.empty_cache()
    assert segments(allocator) == [5, 10]
    allocator.free(second)
    allocator.empty_cache()
    assert (allocator.reserved, allocator.all_blocks()) == (0, [])


def ages(*ages_of_blocks: int, threshold: float, total_mib: int = 1000) -> CachingAllocator:
    """Return an allocator with a free segment of 100 MiB for each age, in searches."""
    text = f"garbage_collection_threshold:{threshold}"
    allocator = CachingAllocator(AllocatorConfig.parse(text), total_mib * MIB)
    blocks = [allocator.malloc(100 * MIB) for _ in ages_of_blocks]
    newest = 0
    for age, block in sorted(zip(ages_of_blocks, blocks, strict=True), reverse=True):
        newest = newest or age
        allocator.free(block)
        (free,) = [
            one
            for one in allocator.all_blocks()
            if one.address == (100 * MIB) * blocks.index(block)
        ]
        free.gc_base = free.pool.searches - age
    return allocator


def test_segments_above_the_average_age_go_until_the_threshold():
    # 500 MiB of 1000 are reserved, with a request of 200 on another stream: 100 above 400
    allocator = ages(9, 1, 1, 1, 8, threshold=0.4)
    allocator.malloc(200 * MIB, stream=1)
    # the average of 10, 2, 2, 2 and 9 is 5: both old ones go, though one would be enough
    assert segments(allocator) == [100, 100, 100]
    assert (allocator.stats.num_alloc_retries, allocator.stats.num_device_free) == (0, 2)


def test_the_average_is_taken_again_until_enough_has_gone():
    allocator = ages(20, 8, 2, 1, threshold=0.15)
    allocator.malloc(200 * MIB, stream=1)
    # 250 MiB have to go: 20 is above 8.75, then 8 above 5, and at last 2 above 2.5 isn't: it's 3
    assert segments(allocator) == [100]


def test_reserved_memory_at_the_threshold_stays():
    allocator = ages(9, 1, 1, threshold=0.3)
    allocator.malloc(200 * MIB, stream=1)
    assert segments(allocator) == [100, 100, 100]
    allocator = ages(9, 1, 1, threshold=0.299)
    allocator.malloc(200 * MIB, stream=1)
    assert segments(allocator) == [100, 100]


def test_without_idle_segments_nothing_is_collected():
    allocator = CachingAllocator(
        AllocatorConfig.parse("garbage_collection_threshold:0.1"), 1000 * MIB
    )
    blocks = [allocator.malloc(size * MIB) for size in (300, 5, 5)]
    allocator.free(blocks[2])  # the rest of a split segment
    allocator.malloc(100 * MIB)
    assert (allocator.reserved, allocator.stats.num_device_free) == (420 * MIB, 0)


def test_small_segments_are_not_collected():
    allocator = CachingAllocator(
        AllocatorConfig.parse("garbage_collection_threshold:0.1"), 100 * MIB
    )
    allocator.free(allocator.malloc(MIB))
    for _ in range(3):
        allocator.malloc(20 * MIB)
    assert allocator.stats.segment.small_pool.current == 1


def test_expandable_segments_are_not_collected():
    text = "garbage_collection_threshold:0.1,expandable_segments:True"
    allocator = CachingAllocator(AllocatorConfig.parse(text), 200 * MIB)
    allocator.free(allocator.malloc(60 * MIB))
    allocator.malloc(80 * MIB, stream=1)
    assert allocator.reserved == 140 * MIB
