"""Counts of steps and reads in a rehearsed process."""

from __future__ import annotations

import json
import types
from pathlib import Path

import pytest

from memagent.rehearsal.measurement import MAX_STEPS, Measurement, RehearsalEnd
from memagent.rehearsal.reads import HostReads, Place, is_of_script, place_of_error

OPTIMIZER, OTHER = object(), object()


class Cuda:
    """The statistics of `torch.cuda`: one device with a peak."""

    def __init__(self, peak: int) -> None:
        self.peak = peak

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def memory_stats(self, _device: int) -> dict[str, int]:
        names = (
            "allocated_bytes.all.peak",
            "reserved_bytes.all.peak",
            "num_alloc_retries",
            "num_ooms",
        )
        return {**dict.fromkeys(names, 0), names[0]: self.peak, names[1]: self.peak + 1}


def measure(path: Path, peaks: list[int], steps: int | None = None) -> Measurement:
    """Make steps with these peaks until the rehearsal ends, or all are made."""
    cuda = Cuda(0)
    measurement = Measurement(types.SimpleNamespace(cuda=cuda), path / "state", steps)
    for peak in peaks:
        cuda.peak = peak
        try:
            measurement.after_step(OPTIMIZER, (), {})
        except RehearsalEnd:
            break
    return measurement


def test_it_ends_when_the_peak_has_repeated(tmp_path: Path) -> None:
    measurement = measure(tmp_path, [5, 7, 7, 7, 7])
    assert (measurement.steps, measurement.status) == (4, "stopped")


def test_it_ends_after_the_steps_given(tmp_path: Path) -> None:
    assert measure(tmp_path, [5, 5, 5, 5], steps=3).steps == 3


def test_a_growing_peak_ends_it_at_last(tmp_path: Path) -> None:
    assert measure(tmp_path, list(range(1, 100))).steps == MAX_STEPS


def test_a_reset_hides_no_earlier_peak(tmp_path: Path) -> None:
    measurement = measure(tmp_path, [9, 2])
    state = json.loads((tmp_path / "state").read_text())
    assert measurement.peaks == [9, 9]
    assert state["devices"] == [
        {"index": 0, "allocated": 9, "reserved": 10, "retries": 0, "ooms": 0}
    ]


def test_two_optimizers_make_one_step(tmp_path: Path) -> None:
    measurement = Measurement(types.SimpleNamespace(cuda=Cuda(1)), tmp_path / "state", 9)
    for optimizer in (OPTIMIZER, OTHER, OPTIMIZER, OTHER):
        measurement.after_step(optimizer, (), {})
    assert measurement.steps == 2


def test_a_script_that_catches_the_end_is_left_at_last(tmp_path: Path) -> None:
    measurement = measure(tmp_path, [1], steps=1)
    left: list[bool] = []
    measurement.leave = lambda: left.append(True)
    for _ in range(60):
        with pytest.raises(RehearsalEnd):
            measurement.after_step(OPTIMIZER, (), {})
    assert left


def test_a_line_that_reads_for_ever_waits_for_a_value() -> None:
    waiting: list[Place] = []
    reads = HostReads(waiting.append, limit=3)
    for _ in range(5):
        reads.end_step()
        reads.add("item")
    assert waiting == []
    for _ in range(4):
        reads.add("item")
    (place,) = waiting
    assert place.file == __file__
    assert [item["reads"] for item in reads.most_common(2)] == [5, 4]


@pytest.mark.parametrize(
    ("file", "is_its_own"),
    [
        ("/home/me/train.py", True),
        ("/home/me/.local/lib/python3.12/site-packages/timm/cuda.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        (json.__file__, False),
        ("<string>", False),
    ],
)
def test_places_are_lines_of_the_script(file: str, is_its_own: bool) -> None:
    assert is_of_script(file) is is_its_own


def test_an_error_has_the_innermost_line_of_the_script() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        place = place_of_error(error)
    assert place is not None and place.file == __file__
