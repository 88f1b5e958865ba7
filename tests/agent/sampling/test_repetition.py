"""Steps that repeat each other are read once; whatever differs is read in full or unknown."""

from __future__ import annotations

import pytest

from memagent.delivery.buffer import DroppedSamples
from memagent.probe.host import HostProbe
from memagent.sampling.repetition import (
    EQUAL_STEPS,
    FLAT_BYTES,
    FULL_EVERY,
    MAX_FULL_AGE_S,
    MAX_STEP_S,
    READ_EVERY_S,
    RepetitionDetector,
)
from memagent.sampling.sampler import Sampler
from tests.agent.sampling.test_sampler import ReplayProbe, rows

MIB = 2**20
READ_EVERY = 4
STEP_S = 1.01 * READ_EVERY_S / (READ_EVERY - 1)
"""Time of a step of which every READ_EVERY-th is read."""
PHASES = ("data", "forward", "backward", "optimizer")


def peaks(*sizes: int) -> dict[str, int]:
    return dict(zip(PHASES, sizes, strict=True))


@pytest.fixture
def detector():
    state = RepetitionDetector()
    for _ in range(EQUAL_STEPS + 1):
        state.observe(64, 500 * MIB, peaks(500 * MIB, 700 * MIB, 650 * MIB, 500 * MIB))
    assert state.is_repeating
    return state


@pytest.fixture
def sampler(monkeypatch):
    """Return a function that trains some steps on a host, whatever time each takes."""
    for limit in ("MAX_STEP_S", "MAX_FULL_AGE_S"):
        monkeypatch.setattr(f"memagent.sampling.sampler.{limit}", float("inf"))
    probe = ReplayProbe("host")
    sampler = Sampler([probe], DroppedSamples())
    monkeypatch.setattr("memagent.sampling.sampler.perf_counter", lambda: sampler.step * STEP_S)

    def train(steps: int, input_size: int = 64, end: int = 500 * MIB) -> list[dict]:
        for _ in range(steps):
            probe.now = 500 * MIB
            sampler.begin_forward(input_size)
            probe.now = 700 * MIB
            sampler.set_phase("backward")
            sampler.set_phase("optimizer")
            probe.now = end
            sampler.end_step()
        return rows(sampler)

    train.probe, train.sampler = probe, sampler
    train(2 * FULL_EVERY)
    assert sampler.step % FULL_EVERY == 0 and sampler.tracks[0].repetition.is_repeating
    return train


def test_1_slightly_different_steps_repeat_and_others_are_not():
    state = RepetitionDetector()
    for step in range(EQUAL_STEPS + 1):
        used = 500 * MIB + step * 2**10
        state.observe(64, used, peaks(used, used + 200 * MIB, used + step % 3, used))
    assert state.is_repeating
    state.observe(64, used, peaks(used, used + 202 * MIB, used, used))
    assert not state.is_repeating
    for _ in range(2 * EQUAL_STEPS):  # a phase that comes and goes
        state.observe(64, used, peaks(used, used, used, used))
        state.observe(64, used, {"eval": used, **peaks(used, used, used, used)})
    assert not state.is_repeating


def test_2_a_repetition_has_the_phases_of_the_last_full_step_moved_to_its_end(detector):
    end = 500 * MIB + 4096
    moved = peaks(end, end + 200 * MIB, end + 150 * MIB, end)
    assert detector.peaks_at(64, end, end) == moved


def test_2_most_steps_are_read_once_and_every_row_is_complete(sampler):
    before = sampler.probe.marks
    found = sampler(4 * FULL_EVERY)
    # one step of FULL_EVERY at each of four moments, of the others every READ_EVERY-th at its end
    assert sampler.probe.marks - before == 4 * (FULL_EVERY // READ_EVERY - 1 + 4)
    assert [row["step"] for row in found] == list(range(found[0]["step"], sampler.sampler.step + 1))
    for name in ("peak_allocated_bytes", "phase_forward_peak_bytes", "activations_bytes"):
        assert len({row[name] for row in found}) == 1
    assert found[0]["peak_allocated_bytes"] == 700 * MIB


@pytest.mark.parametrize(
    ("input_size", "end", "last_peak"),
    [(65, 500, 500), (64, 502, 502), (64, 498, 498), (64, 500, 702)],
)
def test_3_a_step_that_differs_ends_it_and_has_no_phases(detector, input_size, end, last_peak):
    assert detector.peaks_at(input_size, end * MIB, last_peak * MIB) == {}
    assert detector.peaks_at(64, 500 * MIB, 500 * MIB) == {}
    assert not detector.is_repeating


def test_3_a_step_that_ends_higher_is_sampled_with_what_was_read(sampler):
    sampler(READ_EVERY)
    first, second = sampler(2, end=900 * MIB)
    assert first["allocated_bytes"] == first["peak_allocated_bytes"] == 900 * MIB
    assert [first[f"phase_{phase}_peak_bytes"] for phase in PHASES] == [None] * 4
    assert first["activations_bytes"] is second["phase_forward_peak_bytes"] is None
    sampler(1, end=900 * MIB)  # it had begun when the rows above showed the difference
    (third,) = sampler(1, end=900 * MIB)
    assert (third["phase_data_peak_bytes"], third["phase_forward_peak_bytes"]) == (
        900 * MIB,
        700 * MIB,
    )


def test_4_an_unread_step_has_the_values_of_the_last_one_that_was_read(sampler):
    sampler(READ_EVERY + 1)
    found = sampler(READ_EVERY, end=900 * MIB)
    assert [row["allocated_bytes"] // MIB for row in found] == [500] * (READ_EVERY - 1) + [900]
    assert len({row["time_s"] for row in found}) == READ_EVERY
    assert found[0]["phase_forward_peak_bytes"] == 700 * MIB
    assert found[-1]["phase_forward_peak_bytes"] is None
    assert not sampler.sampler.tracks[0].repetition.is_repeating


def test_4_an_unread_step_after_one_that_differed_has_no_phases(sampler):
    sampler(READ_EVERY)
    found = sampler(READ_EVERY, end=900 * MIB)  # rows are built after all of them
    assert [row["allocated_bytes"] // MIB for row in found] == [900] * READ_EVERY
    assert {row["phase_forward_peak_bytes"] for row in found} == {None}


def test_4_every_step_is_read_while_memory_grows(sampler):
    end = 500 * MIB
    for _ in range(2 * READ_EVERY):
        end += FLAT_BYTES + 1
        (row,) = sampler(1, end=end)
    assert row["allocated_bytes"] == end
    assert sampler.sampler.tracks[0].repetition.is_repeating


@pytest.mark.parametrize(
    ("step_s", "processor_s", "distance"),
    [(0.005, 0.005, FULL_EVERY), (0.2, 0.01, 26), (1.0, 0.01, 6), (0.1, 0.06, 1)],
)
def test_2_processor_time_decides_how_long_steps_are(
    sampler, monkeypatch, step_s, processor_s, distance
):
    state = sampler.sampler
    monkeypatch.setattr("memagent.sampling.sampler.MAX_STEP_S", MAX_STEP_S)
    monkeypatch.setattr("memagent.sampling.sampler.MAX_FULL_AGE_S", MAX_FULL_AGE_S)
    monkeypatch.setattr("memagent.sampling.sampler.perf_counter", lambda: 1e6 + state.step * step_s)
    monkeypatch.setattr(
        "memagent.sampling.sampler.thread_time", lambda: 1e6 + state.step * processor_s
    )
    for _ in range(FULL_EVERY):
        sampler(1)
    full = []
    while len(full) < 3:
        if not state.is_repetition:
            full.append(state.step)
        sampler(1)
    assert full[2] - full[1] == distance


@pytest.mark.parametrize("unusual", ["input size", "phase of the script", "eval"])
def test_what_is_unusual_is_read_at_once(sampler, unusual):
    sampler(1)
    before = sampler.probe.marks
    if unusual == "input size":
        (row,) = sampler(1, input_size=65)
        assert row["phase_forward_peak_bytes"] == 700 * MIB
        return
    sampler.probe.now = 800 * MIB
    if unusual == "eval":
        sampler.sampler.set_phase("eval")
        sampler.sampler.set_phase("data")
        name = "eval"
    else:
        sampler.sampler.set_user_phase("validation")
        sampler.sampler.set_user_phase(None)
        name = "validation"
    (row,) = sampler(1)
    assert sampler.probe.marks - before == 2 + 4
    assert row["peak_allocated_bytes"] == row[f"phase_{name}_peak_bytes"] == 800 * MIB


@pytest.mark.parametrize("reason", ["long steps", "every", "gpu"])
def test_other_runs_are_read_in_full(reason, monkeypatch):
    long_s = 0.0 if reason == "long steps" else float("inf")
    monkeypatch.setattr("memagent.sampling.sampler.MAX_STEP_S", long_s)
    probe = ReplayProbe("cuda" if reason == "gpu" else "host")
    sampler = Sampler([probe], DroppedSamples(), every=2 if reason == "every" else 1)
    for _ in range(3 * EQUAL_STEPS):
        sampler.begin_forward(64)
        sampler.set_phase("backward")
        sampler.set_phase("optimizer")
        sampler.end_step()
        rows(sampler)
    # one reading in the construction, then four a step, of a sample that is counted too
    assert probe.marks == 1 + 4 * 3 * EQUAL_STEPS


def test_a_hosts_mark_in_place_of_a_sample_shows_the_high_water_mark_of_now():
    probe = HostProbe()
    mark = probe.mark()
    size = probe.past_peak_bytes - probe.used_bytes() + 256 * MIB
    del (block := bytearray(b"x") * size)[:]
    peak, readings = probe.readings(mark)
    assert peak - readings[0] > size - 16 * MIB
    probe.close()


def test_4_activations_after_a_small_move_are_above_the_new_end(sampler):
    sampler(READ_EVERY)
    found = sampler(3 * READ_EVERY, end=500 * MIB + 4096)
    activations = [row["activations_bytes"] for row in found if row["step"] % READ_EVERY == 1]
    assert activations == [200 * MIB + 4096, 200 * MIB, 200 * MIB]
