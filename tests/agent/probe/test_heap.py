"""What this process has allocated, by glibc and Python."""

from __future__ import annotations

import itertools
import mmap
from itertools import chain
from multiprocessing import shared_memory

import pytest

from memagent.probe.heap import HeapReader, _MallInfo, heap_reader

MIB = 2**20
read = heap_reader()
pytestmark = pytest.mark.skipif(read is None, reason="needs glibc 2.33")


@pytest.mark.parametrize("size", [1_000, 4 * MIB])
def test_what_is_allocated_counts_until_it_is_freed(size):
    """In the heap, and in a mapping of its own; whether or not a page of it was written."""
    before = read()
    held = [bytearray(size) for _ in range(16 * MIB // size)]
    assert 15 * MIB < read() - before < 20 * MIB
    del held
    assert read() - before < MIB


def test_small_objects_count():
    before = read()
    held = [[number] for number in range(100_000)]
    assert read() - before > 100_000 * 64
    del held


@pytest.mark.parametrize("seconds", [(0.03,), (0.015,) * 7])
def test_slow_readings_give_way_to_resident_memory(seconds):
    """As they did in a fragmented heap; what grows counts still."""
    times = itertools.accumulate(chain.from_iterable((0, each) for each in seconds))
    reader = HeapReader(lambda: _MallInfo(uordblks=5 * MIB), clock=lambda: next(times))
    before = [reader() for _ in seconds][-1]
    held = mmap.mmap(-1, 16 * MIB)  # not from what earlier tests have freed
    held[::4096] = bytes(len(held[::4096]))
    assert 15 * MIB < reader() - before < 20 * MIB


def test_shared_memory_counts_once_it_is_written():
    before = read()
    segment = shared_memory.SharedMemory(create=True, size=16 * MIB)
    try:
        segment.buf[:] = bytes(16 * MIB)
        assert 15 * MIB < read() - before < 20 * MIB
    finally:
        segment.close()
        segment.unlink()
    assert read() - before < MIB
