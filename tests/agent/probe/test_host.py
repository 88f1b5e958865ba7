"""The host as a device: readings of this very process and of real children."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from memagent.probe.host import HostProbe

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
    held = probe.used_bytes()
    del block
    assert held - before > 120 * MIB
    assert probe.used_bytes() < held - 120 * MIB


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
    del (block := bytearray(b"x") * (256 * MIB))[:]
    peak, _ = probe.readings(probe.sample())
    assert peak - before > 240 * MIB
    peak, readings = probe.readings(probe.sample())
    assert peak < before + 100 * MIB  # told once


def test_a_given_limit_replaces_those_of_the_system():
    probe = HostProbe(limit_bytes=7 * MIB)
    assert (probe.device.limit_bytes, probe.device.limit_source) == (7 * MIB, "given")
    probe.close()


def test_children_count(probe):
    probe.refresh()
    before = probe.used_bytes()
    code = "import sys; block = bytearray(b'x') * (150 * 2**20); print('ready', flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout.readline() == "ready\n"
        deadline = time.monotonic() + 20
        while probe.used_bytes() - before < 150 * MIB and time.monotonic() < deadline:
            probe.refresh()
            time.sleep(0.05)
        assert probe.used_bytes() - before > 150 * MIB
        child.stdin.close()
