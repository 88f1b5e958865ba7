"""From phase marks to rows, with a probe that a test controls."""

from __future__ import annotations

import pytest

from memagent.delivery.buffer import DroppedSamples
from memagent.leaks import triggers
from memagent.sampling.sampler import MAX_MARKS, Sampler
from memagent.wire.messages import Device


class ReplayProbe:
    """Reads `now`, which a test sets; a peak is the higher of both readings, as on a host."""

    columns = ("allocated_bytes",)
    context_bytes = None

    def __init__(self, kind: str = "cuda") -> None:
        self.device = Device(id=kind, kind=kind, name=kind, limit_bytes=1000)
        self.now = self._last = 0
        self.marks = 0

    def mark(self):
        self.marks += 1
        return self.now

    sample = mark

    def peak(self, mark):
        last, self._last = self._last, mark
        return max(last, mark)

    def readings(self, sample):
        return self.peak(sample), (sample,)


@pytest.fixture
def probe():
    return ReplayProbe()


def rows(sampler: Sampler) -> list[dict]:
    buffer = sampler.tracks[0].buffer
    return [
        dict(zip(buffer.columns, row, strict=True)) | (extra or {}) for row, extra in buffer.drain()
    ]


def go(sampler: Sampler, probe: ReplayProbe, *moments: tuple[str, int]) -> None:
    for phase, used in moments:
        probe.now = used
        sampler.set_phase(phase)


def test_1_a_peak_belongs_to_the_phase_that_ends_and_to_the_one_that_begins(probe):
    sampler = Sampler([probe], DroppedSamples())
    go(sampler, probe, ("forward", 10), ("backward", 60), ("optimizer", 20))
    probe.now = 25
    assert sampler.end_step()
    (row,) = rows(sampler)
    assert (row["phase_data_peak_bytes"], row["phase_forward_peak_bytes"]) == (10, 60)
    assert (row["phase_backward_peak_bytes"], row["phase_optimizer_peak_bytes"]) == (60, 25)
    assert (row["peak_allocated_bytes"], row["activations_bytes"], row["allocated_bytes"]) == (
        60,
        60,
        25,
    )


def test_1_what_the_optimizer_allocates_meanwhile_is_no_activation(probe):
    sampler = Sampler([probe], DroppedSamples())
    go(sampler, probe, ("forward", 10), ("backward", 60), ("optimizer", 20), ("optimizer", 90))
    probe.now = 25
    sampler.end_step()
    go(sampler, probe, ("forward", 25), ("backward", 65), ("optimizer", 30), ("optimizer", 95))
    sampler.end_step()
    assert [
        (row["peak_allocated_bytes"], row["phase_optimizer_peak_bytes"], row["activations_bytes"])
        for row in rows(sampler)
    ] == [(90, 90, 60), (95, 95, 40)]


def test_1_gradient_accumulation_keeps_the_highest_of_each_phase(probe):
    sampler = Sampler([probe], DroppedSamples())
    go(
        sampler,
        probe,
        ("forward", 10),
        ("backward", 60),
        ("forward", 12),
        ("backward", 80),
        ("optimizer", 20),
    )
    sampler.end_step()
    (row,) = rows(sampler)
    assert (row["phase_forward_peak_bytes"], row["phase_backward_peak_bytes"]) == (80, 80)
    assert row["step"] == 1


def test_2_peaks_cover_the_steps_that_are_skipped(probe):
    sampler = Sampler([probe], DroppedSamples(), every=3)
    for used in (10, 70, 10, 10, 10, 30):
        go(sampler, probe, ("forward", 5), ("backward", used), ("optimizer", 6))
        sampler.end_step()
    sampled = rows(sampler)
    assert [
        (row["step"], row["peak_allocated_bytes"], row["phase_forward_peak_bytes"])
        for row in sampled
    ] == [(3, 70, 70), (6, 30, 30)]


@pytest.mark.parametrize(("every", "lost"), [(1, 6), (4, 1), (100, 0)])
def test_steps_that_are_counted_late_are_lost_samples(probe, every, lost):
    drops = DroppedSamples()
    sampler = Sampler([probe], drops, every=every)
    sampler.end_step()
    sampler.count_late(0)
    sampler.count_late(6)
    assert sampler.end_step() == (every != 100)
    assert (sampler.step, drops) == (8, {"counted_late": lost} if lost else {})


def test_3_hooks_do_not_change_a_phase_of_the_user(probe):
    sampler = Sampler([probe], DroppedSamples())
    assert sampler.set_user_phase("validation") is None
    go(sampler, probe, ("eval", 10), ("data", 90))
    assert sampler.set_user_phase("inner") == "validation"
    probe.now = 40
    assert sampler.set_user_phase("validation") == "inner"
    sampler.end_step()
    assert sampler.phase == "validation"
    sampler.set_user_phase(None)
    probe.now = 7
    sampler.end_step()
    first, second = rows(sampler)
    assert (first["phase_validation_peak_bytes"], first["phase_inner_peak_bytes"]) == (90, 90)
    assert "phase_eval_peak_bytes" not in first
    assert (second["phase_data_peak_bytes"], second["phase_validation_peak_bytes"]) == (40, 40)


def test_4_the_host_of_a_gpu_is_read_at_the_end_of_steps_only(probe):
    host = ReplayProbe("host")
    sampler = Sampler([probe, host], DroppedSamples())
    read = (probe.marks, host.marks)
    go(sampler, probe, ("forward", 1), ("backward", 1), ("optimizer", 1))
    sampler.end_step()
    assert (probe.marks - read[0], host.marks - read[1]) == (4, 1)


def test_5_a_long_evaluation_keeps_its_peak_in_bounded_memory(probe):
    sampler = Sampler([probe], DroppedSamples())
    most = 0
    for index in range(5 * MAX_MARKS):
        go(sampler, probe, ("eval", 900 if index == 3 else 10))
        most = max(most, len(sampler.tracks[0].marks))
    assert most < MAX_MARKS
    assert rows(sampler) == []
    sampler.end_step()
    (row,) = rows(sampler)
    assert row["phase_eval_peak_bytes"] == row["peak_allocated_bytes"] == 900


def test_without_phases_only_the_peak_is_recorded(probe):
    sampler = Sampler([probe], DroppedSamples(), phases=False)
    go(sampler, probe, ("optimizer", 50))
    sampler.end_step()
    (row,) = rows(sampler)
    assert row["peak_allocated_bytes"] == 50 and row["phase_data_peak_bytes"] is None


def test_a_part_of_the_run_has_work_until_the_next_step_boundary(tmp_path, monkeypatch):
    import torch

    import memagent

    monkeypatch.setenv("MEMAGENT_DIR", str(tmp_path))
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = memagent.attach(model, optimizer, predict=False)
    monkeypatch.setattr(triggers, "EARLY_STEPS", 0)  # the first steps have work each
    calls = []
    run._pipeline.instrumentation.add_step_listeners(lambda: calls.append(run.step))
    for _ in range(3):
        optimizer.step()
    run._pipeline.sampler.request_work()
    for _ in range(3):
        optimizer.step()
    run.finish()
    assert calls == [1, 4]
