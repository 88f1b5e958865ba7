"""Random programs in the simulator and in the oracle of conftest.py: always the same state."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.estimator.simulation_score import score_history
from memagent.estimator.allocator import AllocatorConfig, CachingAllocator, SimulatedOutOfMemory
from memagent.estimator.allocator.config import UNLIMITED

MIB = 2**20
KNOWN = [
    512,
    1024,
    MIB // 2,
    MIB,
    MIB + 1,
    5 * MIB,
    9 * MIB,
    10 * MIB - 512,
    10 * MIB,
    18 * MIB,
    19 * MIB,
    19 * MIB + 512,
]
KNOWN += [size * MIB for size in (20, 30, 38, 40, 41, 44, 50, 58, 60)]
SIZES = st.one_of(st.integers(1, 3 * MIB), st.integers(MIB, 60 * MIB), st.sampled_from(KNOWN))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["alloc"] * 5 + ["free"] * 4 + ["wait", "done", "empty"]),
        SIZES,
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=60,
)
KINDS = [
    pytest.param({}, id="default"),
    pytest.param({"total": 160 * MIB}, id="small device"),
    pytest.param({"max_split": 40 * MIB, "total": 200 * MIB}, id="max split"),
    pytest.param({"max_split": 20 * MIB}, id="least max split"),
    pytest.param({"threshold": 0.4, "total": 200 * MIB}, id="garbage collection"),
    pytest.param({"expandable": True}, id="expandable"),
    pytest.param({"expandable": True, "total": 200 * MIB}, id="expandable, small device"),
]
# The state before the record isn't always known: rests under a split limit, and unmapped pages
# below the lowest mapped one.
UNSURE = {"least max split", "expandable, small device"}
SLOW = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def long_program(seed: int) -> list[tuple[str, int, int]]:
    """Return 300 steps with few sizes, so that equal holes, reuse and a full device are common."""
    random = Random(seed)
    sizes = random.sample(KNOWN, 8)
    actions = ["alloc"] * 50 + ["free"] * 44 + ["wait"] * 3 + ["done"] * 3 + ["empty"]
    return [
        (
            random.choice(actions),
            random.choice(sizes) if random.random() < 0.8 else random.randint(1, 60 * MIB),
            stream,
        )
        for stream in random.choices((0, 1), (4, 1), k=300)
    ]


def config_of(kind: dict) -> AllocatorConfig:
    return AllocatorConfig(
        max_split_bytes=kind.get("max_split", UNLIMITED),
        garbage_collection_threshold=kind.get("threshold", 0.0),
        expandable_segments=kind.get("expandable", False),
    )


def run(steps, truth, out_of_memory, simulated=None):
    """Run the steps in the oracle and, if given, in the simulator; yield after each."""
    live, waiting = [], []
    for kind, size, stream in steps:
        number = size
        if kind == "alloc":
            try:
                address = truth.malloc(size, stream)
            except out_of_memory:
                if simulated is not None:
                    with pytest.raises(SimulatedOutOfMemory):
                        simulated.malloc(size, stream)
                waiting.clear()
            else:
                block = simulated.malloc(size, stream) if simulated is not None else 0
                live.append((address, block))
                waiting = [
                    one for one in waiting if one[0] in truth.waiting()
                ]  # a retry completes the frees
                assert simulated is None or simulated.address(block) == address
        elif kind == "free" and live:
            address, block = live.pop(number % len(live))
            truth.free(address)
            if simulated is not None:
                simulated.free(block)
        elif kind == "wait" and live:
            waiting.append(live.pop(number % len(live)))
            truth.request_free(waiting[-1][0])
            if simulated is not None:
                simulated.request_free(waiting[-1][1])
        elif kind == "done" and waiting:
            address, block = waiting.pop(number % len(waiting))
            truth.complete_free(address)
            if simulated is not None:
                simulated.complete_free(block)
        elif kind == "empty":
            truth.empty_cache()
            waiting.clear()
            if simulated is not None:
                simulated.empty_cache()
        yield


def same_states(kind, steps, oracle, out_of_memory):
    truth = oracle(**kind)
    simulated = CachingAllocator(config_of(kind), kind.get("total"))
    stats = simulated.stats
    for _ in run(steps, truth, out_of_memory, simulated):
        assert [
            (block.address, block.size, block.busy) for block in simulated.all_blocks()
        ] == truth.blocks()
        assert (simulated.reserved, simulated.allocated) == (truth.reserved(), truth.allocated())
        assert (
            stats.inactive_split.all.current,
            stats.inactive_split_bytes.all.current,
        ) == truth.inactive_split()
        assert stats.segment.all.current == sum(not segment.page for segment in truth.segments)
        assert stats.num_alloc_retries == truth.retries


@pytest.mark.parametrize("kind", KINDS)
@SLOW
@given(steps=STEPS)
def test_it_has_the_oracles_state_after_every_step(kind, steps, oracle, out_of_memory):
    same_states(kind, steps, oracle, out_of_memory)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", KINDS)
def test_it_has_the_oracles_state_all_through_a_long_program(kind, seed, oracle, out_of_memory):
    same_states(kind, long_program(seed), oracle, out_of_memory)


def recorded(kind, steps, oracle, out_of_memory):
    truth = oracle(**kind, descending=not kind.get("expandable"))
    for _ in run(steps, truth, out_of_memory):
        pass
    return truth


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", KINDS)
def test_it_repeats_the_oracles_history_exactly(kind, seed, oracle, out_of_memory):
    score = score_history(
        recorded(kind, long_program(seed), oracle, out_of_memory).snapshot(),
        total_bytes=kind.get("total"),
    )
    assert score.exact, score
    assert score.address_mismatches == score.unknown_frees == score.opening_bytes == 0
    assert score.recorded_peak_reserved == score.simulated_peak_reserved
    assert score.final_blocks_equal


@pytest.mark.parametrize("dropped", [1, 30, 150, 400])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.id not in UNSURE])
def test_it_rebuilds_memory_allocated_before_the_record(kind, seed, dropped, oracle, out_of_memory):
    score = score_history(
        recorded(kind, long_program(seed), oracle, out_of_memory).snapshot(dropped),
        total_bytes=kind.get("total"),
    )
    assert score.exact, score
    assert score.address_mismatches == score.unknown_frees == 0


@pytest.mark.parametrize("kind", KINDS)
@SLOW
@given(steps=STEPS, dropped=st.integers(1, 40))
def test_it_survives_every_history(kind, steps, dropped, oracle, out_of_memory):
    truth = recorded(kind, steps, oracle, out_of_memory)
    if len(truth.trace) > dropped:
        assert score_history(truth.snapshot(dropped)).unknown_frees == 0
