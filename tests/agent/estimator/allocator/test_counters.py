"""Counters: current value, peak and sums, under torch's names."""

from __future__ import annotations

from memagent.estimator.allocator.counters import AllocatorStats, Counter, PoolCounter


def test_a_counter_has_its_peak_and_the_sums_of_both_directions():
    counter = Counter()
    for amount in (5, -2, 4, 0, -3):
        counter.add(amount)
    assert counter.as_dict("x") == {
        "x.current": 4, "x.peak": 7, "x.allocated": 9, "x.freed": 5,
    }  # fmt: skip
    counter.reset_peak()
    assert (counter.current, counter.peak, counter.total) == (4, 4, 9)
    counter.add(1)
    assert (counter.current, counter.peak, counter.total) == (5, 5, 10)


def test_a_counter_of_pools_adds_up():
    counter = PoolCounter()
    for amount, small in ((5, True), (10, False), (-4, True), (1, True), (-10, False), (3, False)):
        counter.add(amount, small=small)
    values = {name: (one.current, one.peak, one.total) for name, one in counter.by_name().items()}
    assert values == {"all": (5, 15, 19), "small_pool": (2, 5, 6), "large_pool": (3, 10, 13)}


def test_one_byte_is_counted():
    counter, pools = Counter(), PoolCounter()
    counter.add(1)
    pools.add(1, small=True)
    assert (counter.current, counter.peak, counter.total) == (1, 1, 1)
    assert pools.all.as_dict("x") == pools.small_pool.as_dict("x") == counter.as_dict("x")


def test_the_statistics_begin_at_zero_under_torchs_names():
    flat = AllocatorStats().as_dict()
    assert set(flat.values()) == {0}
    pools = ("allocation", "segment", "active", "inactive_split", "allocated_bytes",
             "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes")  # fmt: skip
    stems = [f"{name}.{pool}" for name in pools for pool in ("all", "small_pool", "large_pool")]
    stems += ["oversize_allocations", "oversize_segments"]
    scalars = ["num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc",
               "num_device_free"]  # fmt: skip
    values = ("current", "peak", "allocated", "freed")
    assert set(flat) == {f"{stem}.{value}" for stem in stems for value in values} | {*scalars}


def test_all_peaks_are_reset_at_once():
    stats = AllocatorStats()
    stats.segment.add(2, small=True)
    stats.segment.add(-1, small=True)
    stats.oversize_segments.add(3)
    stats.oversize_segments.add(-1)
    stats.num_ooms = 4
    stats.reset_peak()
    flat = stats.as_dict()
    assert (flat["segment.all.peak"], flat["segment.small_pool.peak"]) == (1, 1)
    assert (flat["oversize_segments.peak"], flat["num_ooms"]) == (2, 4)
