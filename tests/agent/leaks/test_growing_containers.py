"""The census of containers: steady growth of what stays, whatever it is."""

from __future__ import annotations

import asyncio
import io
import sys
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from mmap import mmap

import numpy as np
import pytest
import torch

from memagent.components import safe_reads
from memagent.leaks import object_sizes
from memagent.leaks.growing_containers import ContainerCensus
from memagent.leaks.object_sizes import is_opaque, size_of
from memagent.leaks.suspect import build_suspect, with_opaque_holders


def growing(add, steps=20, **at_the_end):
    census = ContainerCensus()
    census.begin(0)
    for step in range(1, steps + 1):
        add(step)
        if 2 * step == steps:
            census.middle(step)
    return census.end(steps, **at_the_end)


def test_4_another_thread_may_note_what_a_reading_needs():
    """What is made and dropped meanwhile isn't kept."""
    rows, others, census = [], [], ContainerCensus()

    def noted():
        with ThreadPoolExecutor(1) as thread:
            assert id(tensor) in thread.submit(census.note).result().ids

    tensor = torch.ones(2)
    noted()
    census.begin(0)
    for step in range(1, 21):
        rows.append(bytes(5_000))
        others[:] = [bytes(5_000)] * step
        if step in (9, 19):
            noted()
        if step == 10:
            census.middle(step)
    found = [item.container for item in census.end(20)]
    assert [item is rows for item in found] == [True]


@pytest.mark.parametrize(
    ("kind", "add"),
    [
        (list, lambda items, step: items.append(bytes(5_000))),
        (dict, lambda items, step: items.update({step: np.zeros(700)})),
        (deque, lambda items, step: items.append([float(step + n) for n in range(600)])),
        (set, lambda items, step: items.add(f"{step}" * 4_000)),
    ],
    ids=["list", "dict", "deque", "set"],
)
def test_it_finds_what_grows_with_its_bytes(kind, add):
    items = kind()
    found = [item for item in growing(lambda step: add(items, step)) if item.container is items]
    assert len(found) == 1 and 4_000 < found[0].bytes_per_step < 30_000
    assert found[0].items_per_step == 1


@pytest.mark.parametrize(
    "add",
    [
        lambda items, step: step <= 8 and items.append(bytes(5_000)),  # warm-up
        lambda items, step: items.append(0.5),  # numbers
        lambda items, step: (step % 7 == 1 and items.clear(), items.append(np.zeros(900))),
        lambda items, step: (items.append(bytes(5_000 + step)), items.__delitem__(slice(0, -6))),
        lambda items, step: items.__setitem__(slice(None), [step * n for n in range(900 * step)]),
    ],
    ids=["warm_up", "numbers", "cleared", "replaced", "longer_input"],
)
def test_it_leaves_out_what_does_not_grow_for_good(add):
    items = []
    assert not [item for item in growing(lambda step: add(items, step)) if item.container is items]


def test_a_table_whose_oldest_entries_leave_may_be_full():
    items = {}

    def add(step):
        items[step] = bytes(5_000 + step)
        if len(items) > 15:
            del items[min(items)]

    assert items not in [item.container for item in growing(add)]


@pytest.mark.parametrize("is_new", [True, False])
def test_new_items_at_the_addresses_of_old_ones_are_not_those(is_new):
    items = []
    found = growing(lambda _: items.append([0.5] * 900), is_new=lambda _: is_new)
    assert (items in [item.container for item in found]) is not is_new


class Report(StringIO):
    def tell(self):
        raise AssertionError("code of the script")


def test_a_stream_of_a_class_of_the_script_grows_by_what_is_written():
    report, closed = Report(), Report()
    closed.close()
    (found,) = [
        item for item in growing(lambda _: report.write("x" * 5_000)) if item.container is report
    ]
    assert found.bytes_per_step >= 5_000 and closed.closed


class Checked:
    """A descriptor with the values of all instances."""

    def __init__(self):
        self.values = {}

    def __set__(self, instance, value):
        self.values[instance.number] = value


class Trajectory:
    angles = Checked()

    def __init__(self, number):
        self.number = number
        self.angles = np.zeros(700)


def test_a_dict_of_arrays_in_a_class_of_the_script_is_found():
    found = [item.container for item in growing(Trajectory)]
    assert vars(Trajectory)["angles"].values in found


def test_the_size_of_an_object_includes_its_parts():
    class Row:
        def __init__(self):
            self.values = np.zeros(1_000)
            self.next = self

    view = np.zeros(2_000)[:1]
    assert 8_000 < size_of(Row()) < 9_500
    assert size_of(view) > 16_000 and size_of([view, view]) < 18_000
    assert size_of("x" * 500) == sys.getsizeof("x" * 500)
    stream = io.StringIO()
    stream.write("x" * 9_000)
    assert 9_000 < size_of(stream) < 9_500


def test_numbers_and_texts_are_read_without_a_search_for_arrays(monkeypatch):
    row = {"step": 3_000, "scores": [0.5, 1e3, "high"], "flags": (None, True)}
    items_of, reads = safe_reads.items_of, []
    monkeypatch.setattr(safe_reads, "items_of", lambda items: reads.append(1) or items_of(items))
    size = size_of(row)
    assert len(reads) == 1
    monkeypatch.setattr(object_sizes, "_PLAIN_CONTAINERS", frozenset())
    assert size_of(row) == size and len(reads) == 4


def test_the_size_of_a_map_is_its_length_until_it_is_closed():
    shard = mmap(-1, 1 << 16)
    assert size_of([shard]) > 1 << 16
    shard.close()
    assert size_of([shard]) < 1_000


def test_it_finds_containers_of_what_nobody_can_look_into():
    items = []
    (item,) = (
        item
        for item in growing(lambda step: items.append(zlib.compressobj()))
        if item.container is items
    )
    assert item.bytes_per_step == 0 and item.items_per_step == 1


def test_an_allocation_is_kept_by_the_opaque_container_that_its_function_fills():
    unknown = build_suspect("film.py", 13, "Film.record", "unknown", "allocation", 25_600, 0.5)
    frames = build_suspect("film.py", 14, "Film.record", "Film.frames: list", "host", 0, 0.8)
    others = build_suspect("film.py", 40, "main", "codecs: list", "host", 0, 0.8)
    (suspect,) = with_opaque_holders([frames, others, unknown])
    assert (suspect.line, suspect.holder, suspect.bytes_per_step) == (
        14,
        "Film.frames: list",
        25_600,
    )
    assert with_opaque_holders([frames]) == []


class Slotted:
    __slots__ = ("rows",)

    def __init__(self, rows):
        self.rows = rows


@pytest.mark.parametrize("keep", [Slotted, lambda rows: lambda: rows])
def test_what_slots_and_closures_keep_counts(keep):
    assert size_of(keep([bytes(50_000)])) > 50_000


async def _result():
    return bytes(50_000)


def test_what_a_finished_task_keeps_counts():
    async def run():
        task = asyncio.ensure_future(_result())
        await task
        return task

    assert 50_000 < size_of(asyncio.run(run())) < 60_000


def test_a_future_of_c_is_opaque_and_a_tensor_is_not():
    assert is_opaque([torch._C.Future([])]) and not is_opaque([torch.zeros(3), torch.float32])


def test_among_very_many_containers_one_that_grows_is_found(monkeypatch):
    """Short ones aren't noted then, and of few others the items are."""
    monkeypatch.setattr("memagent.leaks.growing_containers._MANY", 0)
    monkeypatch.setattr("memagent.leaks.growing_containers._MAX_NEW", 2)
    rows, others, census = [np.zeros(1024) for _ in range(20)], [], ContainerCensus()
    for step in range(21):
        if step in (0, 10):
            (census.begin if step == 0 else census.middle)(step)
        rows.append(np.zeros(1024))
        others += [[step] * 20 for _ in range(50)]
    assert len(census._middle) < 1100
    found = {id(item.container): item for item in census.end(20)}
    assert found[id(rows)].bytes_per_step == pytest.approx(8192, rel=0.1)
    assert not {id(item) for item in others} & found.keys()


def test_a_container_that_is_newer_than_the_beginning_has_no_more_than_then():
    """Only one that the collector doesn't track, such as a dict of numbers, may be older."""
    rows, same, record = [[1]], [[2]], {"label": 3}
    census = ContainerCensus()
    census.begin(0)
    rows.append([4])
    new = [[5]]
    record["image"] = b"6"
    assert [census.has_more(item) for item in (rows, same, new, record)] == [
        True,
        False,
        False,
        True,
    ]
