"""The host as a device: readings of this process and of real children."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading

import pytest

from memagent.probe.host import HostProbe
from memagent.probe.host_limits import Pressure
from tests.waiting import wait_until

MIB = 2**20


@pytest.fixture
def probe():
    probe = HostProbe()
    yield probe
    probe.close()


def test_a_sample_has_its_columns_and_used_is_below_the_limit(probe):
    _, readings = probe.readings(probe.sample())
    sample = dict(zip(probe.columns, readings, strict=True))
    assert 0 < sample["allocated_bytes"] == sample["device_used_bytes"] < sample["limit_bytes"]
    assert sample["reserved_bytes"] >= sample["allocated_bytes"]
    assert sample["host_rss_bytes"] > 5 * MIB


def test_it_sees_memory_come_and_go(probe):
    before = probe.used_bytes()
    block = bytearray(b"x") * (128 * MIB)
    during = probe.used_bytes()
    del block
    assert during - before > 120 * MIB
    assert probe.used_bytes() < during - 120 * MIB


def test_a_marks_peak_is_the_higher_of_the_readings_at_both_ends(probe):
    marks = [probe.mark()]
    block = bytearray(b"x") * (128 * MIB)
    marks.append(probe.mark())
    del block
    marks += [probe.mark(), probe.mark()]
    first, up, down, after = map(probe.peak, marks)
    assert up - first > 120 * MIB
    assert down == up
    assert after < up - 120 * MIB


def test_the_kernels_high_water_mark_shows_a_peak_between_readings(probe):
    before = probe.used_bytes()
    highest = (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )  # above that of all tests before, so that the high-water mark rises
    size = highest - before + 256 * MIB
    del (block := bytearray(b"x") * size)[:]
    peak, _ = probe.readings(probe.sample())
    assert peak - before > size - 16 * MIB
    peak, readings = probe.readings(probe.sample())
    assert peak < before + 100 * MIB  # reported once


def test_a_limit_argument_replaces_the_system_s_limits():
    probe = HostProbe(limit_bytes=7 * MIB)
    assert (probe.device.limit_bytes, probe.device.limit_source) == (7 * MIB, "given")
    probe.close()


def test_children_count(probe):
    probe.refresh()
    before = probe.used_bytes()
    code = (
        "import sys; block = bytearray(b'x') * (150 * 2**20); "
        "print('ready', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout.readline() == "ready\n"

        def counts() -> bool:
            probe.refresh()
            return probe.used_bytes() - before > 150 * MIB

        wait_until(counts)
        child.stdin.close()


def test_slow_readings_change_with_a_refresh(probe):
    before = dict(zip(probe.columns, probe.readings(probe.sample())[1], strict=True))
    probe.refresh()
    after = dict(zip(probe.columns, probe.readings(probe.sample())[1], strict=True))
    slow = [name for name in probe.columns if before[name] is None]
    assert slow[:2] == ["host_pss_bytes", "host_locked_bytes"]
    assert all(after[name] is not None for name in ("host_pss_bytes", "host_locked_bytes"))
    assert 0 < after["host_pss_bytes"] < 2 * after["host_rss_bytes"]


def test_a_kill_by_the_kernel_becomes_an_event_and_older_ones_do_not(probe, monkeypatch):
    kills = iter([3, 3, None, 5, 5])
    monkeypatch.setattr(
        "memagent.probe.host.read_pressure", lambda _: Pressure(oom_kills_total=next(kills))
    )
    events = []
    for _ in range(5):
        probe.refresh()
        events.append([(event.kind, event.data) for event in probe.take_events()])
    assert events == [[], [], [], [("oom_kill", {"device": "host", "processes": 2})], []]


def test_pressure_is_read_again_at_the_age_that_is_asked_and_limits_always(probe, monkeypatch):
    reads = []
    monkeypatch.setattr(
        "memagent.probe.host.read_pressure", lambda _: reads.append(1) or Pressure()
    )
    probe.refresh(3600.0)
    monkeypatch.setattr(probe, "_fixed_limit", 7 * MIB)
    probe.refresh(3600.0)
    assert len(reads) == 1 and probe.limit_bytes == 7 * MIB
    probe.refresh()
    assert len(reads) == 2


def test_refreshes_in_two_threads_at_once_are_harmless(probe):
    threads = [
        threading.Thread(target=lambda: [probe.refresh() for _ in range(20)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert probe.readings(probe.sample())[1][5] is not None


def test_it_leaves_no_file_open():
    before = len(os.listdir("/proc/self/fd"))
    probe = HostProbe()
    probe.refresh()
    probe.close()
    assert len(os.listdir("/proc/self/fd")) == before
