"""Histories written by hand in torch's form, and the score of the simulation on them."""

from __future__ import annotations

import pytest

from benchmarks.estimator.simulation_score import (
    config_from_snapshot,
    history_events,
    score_history,
)
from memagent.errors import EstimateError
from memagent.estimator.allocator import AllocatorConfig, replay
from memagent.estimator.allocator.config import UNLIMITED

MIB = 2**20
BASE = 0x7F00_0000_0000


def entry(action: str, address: int, size: int, stream: int = 0) -> dict:
    return {
        "action": action,
        "addr": BASE + address,
        "size": size,
        "stream": stream,
        "frames": [],
        "time_us": 1,
    }


def freed(address: int, size: int, stream: int = 0) -> list[dict]:
    return [
        entry("free_requested", address, size, stream),
        entry("free_completed", address, size, stream),
    ]


def snapshot(*trace: dict, segments: list | None = None, **settings) -> dict:
    results = {"device_traces": [list(trace)], "allocator_settings": settings}
    return results if segments is None else {**results, "segments": segments}


def segment(address: int, *blocks: tuple[int, str], kind: str = "large", **more) -> dict:
    start = BASE + address
    total = sum(size for size, _ in blocks)
    listed = []
    for size, state in blocks:
        listed.append(
            {
                "address": start,
                "size": size,
                "requested_size": size if state != "inactive" else 0,
                "state": state,
            }
        )
        start += size
    allocated = sum(size for size, state in blocks if state == "active_allocated")
    return {
        "device": 0,
        "address": BASE + address,
        "total_size": total,
        "allocated_size": allocated,
        "stream": 0,
        "segment_type": kind,
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": listed,
        **more,
    }


PROGRAM = [
    entry("segment_alloc", 0, 20 * MIB),
    entry("alloc", 0, 5 * MIB),
    entry("alloc", 5 * MIB, 4 * MIB),
    *freed(0, 5 * MIB),
    entry("alloc", 0, 3 * MIB),
    entry("snapshot", 0, 0),
]
ENDING = [
    segment(
        0,
        (3 * MIB, "active_allocated"),
        (2 * MIB, "inactive"),
        (4 * MIB, "active_allocated"),
        (11 * MIB, "inactive"),
    )
]


def test_it_yields_the_requests_for_a_replay():
    events = list(history_events(snapshot(*PROGRAM)))
    assert [(one.kind, one.storage, one.size_bytes) for one in events] == [
        ("alloc", 1, 5 * MIB),
        ("alloc", 2, 4 * MIB),
        ("free", 1, 5 * MIB),
        ("alloc", 3, 3 * MIB),
    ]
    result = replay(events)
    assert (result.peak_allocated, result.peak_reserved) == (9 * MIB, 20 * MIB)


def test_memory_that_waits_for_a_stream_is_freed_when_it_can_be_used_again():
    request, complete = freed(0, 5 * MIB)
    trace = [PROGRAM[0], PROGRAM[1], request, entry("alloc", 5 * MIB, 5 * MIB), complete]
    assert [one.kind for one in history_events(snapshot(*trace))] == ["alloc", "alloc", "free"]
    assert score_history(snapshot(*trace)).exact


def test_a_history_that_obeys_the_rules_is_repeated_exactly():
    score = score_history(snapshot(*PROGRAM, segments=ENDING))
    assert score.exact
    assert score.first_difference is None
    assert (score.allocations, score.address_mismatches, score.unknown_frees) == (3, 0, 0)
    assert score.recorded_peak_reserved == score.simulated_peak_reserved == 20 * MIB
    assert score.final_allocated == (7 * MIB, 7 * MIB)
    assert score.final_blocks_equal


def test_the_first_difference_of_another_history_is_reported():
    trace = [
        *PROGRAM[:3],
        entry("segment_alloc", 64 * MIB, 20 * MIB),
        entry("alloc", 64 * MIB, 3 * MIB),
    ]
    score = score_history(snapshot(*trace))
    assert not score.exact
    first = score.first_difference
    assert (first.index, first.action) == (4, "alloc")
    assert (first.recorded_reserved, first.simulated_reserved) == (40 * MIB, 20 * MIB)
    assert (first.recorded_segments, first.simulated_segments) == (2, 1)
    assert (score.worst_reserved_error, score.address_mismatches) == (-20 * MIB, 1)


def test_another_end_than_recorded_is_not_exact():
    ending = [segment(0, (3 * MIB, "active_allocated"), (17 * MIB, "inactive"))]
    score = score_history(snapshot(*PROGRAM, segments=ending))
    assert not score.exact
    assert score.final_allocated == (3 * MIB, 7 * MIB)


def test_the_default_configuration_is_the_recorded_one():
    trace = [entry("segment_map", 0, 20 * MIB), entry("alloc", 0, 5 * MIB)]
    assert score_history(snapshot(*trace, expandable_segments=True)).exact
    assert score_history(snapshot(*trace), AllocatorConfig(expandable_segments=True)).exact
    assert not score_history(snapshot(*trace)).exact


def test_recorded_addresses_decide_between_equal_blocks():
    # The driver placed the second segment below the first, so the second one is used first.
    trace = [
        entry("segment_alloc", 100 * MIB, 30 * MIB),
        entry("alloc", 100 * MIB, 30 * MIB),
        entry("segment_alloc", 0, 30 * MIB),
        entry("alloc", 0, 30 * MIB),
        *freed(100 * MIB, 30 * MIB),
        *freed(0, 30 * MIB),
        entry("alloc", 0, 30 * MIB),
    ]
    assert score_history(snapshot(*trace)).address_mismatches == 0


def test_the_simulation_repeats_an_emptied_cache():
    trace = [
        *PROGRAM[:2],
        *freed(0, 5 * MIB),
        entry("segment_free", 0, 20 * MIB),
        entry("segment_alloc", 32 * MIB, 30 * MIB),
    ]
    trace.append(entry("alloc", 32 * MIB, 30 * MIB))
    score = score_history(snapshot(*trace))
    assert score.exact
    assert score.recorded_peak_reserved == 30 * MIB


def test_a_cache_that_was_emptied_only_partly_is_a_difference():
    trace = [entry("segment_alloc", 0, 30 * MIB), entry("alloc", 0, 30 * MIB)]
    trace += [entry("segment_alloc", 64 * MIB, 40 * MIB), entry("alloc", 64 * MIB, 40 * MIB)]
    trace += [
        *freed(0, 30 * MIB),
        *freed(64 * MIB, 40 * MIB),
        entry("segment_free", 0, 30 * MIB),
        entry("snapshot", 0, 0),
    ]
    assert score_history(snapshot(*trace)).worst_reserved_error == -40 * MIB
    # ... except for segments of the maximal split size, which torch releases one by one
    assert score_history(snapshot(*trace, max_split_size=25 * MIB)).exact


def test_memory_from_before_the_record_is_rebuilt_from_its_end():
    score = score_history(snapshot(*PROGRAM[3:], segments=ENDING))
    assert score.exact
    assert (score.opening_bytes, score.unknown_frees, score.address_mismatches) == (20 * MIB, 0, 0)


def test_without_the_end_frees_of_old_memory_count_as_unknown():
    score = score_history(snapshot(*PROGRAM[3:]))
    assert not score.exact
    assert score.unknown_frees == 1


def test_segments_of_private_pools_are_counted():
    ending = [segment(0, (2 * MIB, "inactive"), segment_pool_id=(0, 1))]
    assert score_history(snapshot(*PROGRAM, segments=ending)).private_segments == 1


@pytest.mark.parametrize("empty", [{}, {"device_traces": []}, {"device_traces": [[]]}])
def test_a_snapshot_without_history_says_how_to_get_one(empty):
    with pytest.raises(EstimateError, match="_record_memory_history"):
        score_history(empty)


def test_other_devices_have_their_own_trace():
    both = {"device_traces": [[], PROGRAM]}
    assert score_history(both, device=1).allocations == 3
    with pytest.raises(EstimateError, match="device 2"):
        list(history_events(both, device=2))


def test_it_reads_the_settings_recorded_in_a_snapshot():
    settings = {
        "PYTORCH_CUDA_ALLOC_CONF": "large_segment_size_mb:32",
        "max_split_size": -1,
        "garbage_collection_threshold": 0.8,
        "expandable_segments": True,
        "roundup_power2_divisions": {str(2**power): 4 if power == 3 else 0 for power in range(16)},
    }
    config = config_from_snapshot({"allocator_settings": settings})
    assert config.expandable_segments
    assert config.max_split_bytes == UNLIMITED
    assert config.garbage_collection_threshold == 0.8
    assert config.large_segment_bytes == 32 * MIB
    assert [config.divisions_for(size * MIB) for size in (4, 8, 16)] == [0, 4, 0]
    assert config_from_snapshot({}) == AllocatorConfig()
    assert (
        config_from_snapshot({"allocator_settings": {"max_split_size": 64 * MIB}}).max_split_bytes
        == 64 * MIB
    )


def test_a_request_shows_the_size_of_the_block_before_it() -> None:
    """5 MiB were requested before the record, and half a MiB behind them was too little to split."""
    before = 5 * MIB + MIB // 2
    result = score_history(
        snapshot(
            entry("alloc", before, 4 * MIB),
            *freed(before, 4 * MIB),
            *freed(0, 5 * MIB),
            entry("alloc", 0, 3 * MIB),
            segments=[segment(0, (3 * MIB, "active_allocated"), (17 * MIB, "inactive"))],
        )
    )
    assert (result.exact, result.address_mismatches, result.unknown_frees) == (True, 0, 0)
