"""The watch over the tests' memory kills the right process."""

from __future__ import annotations

import subprocess
import sys

from tests import memory_watch

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
print(child.stdout.readline().strip(), flush=True)
print(child.wait(), flush=True)
"""
CHILD = """
import os, time
kept = bytearray(os.urandom(2**20) * 300)
print(os.getpid(), flush=True)
time.sleep(600)
"""


def test_the_largest_descendant_is_killed_and_no_other(capfd):
    command = [sys.executable, "-c", f"CHILD = {CHILD!r}{PARENT}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        grandchild = int(parent.stdout.readline())
        assert memory_watch.kill_largest(parent.pid) == grandchild
        assert parent.stdout.readline() == "-9\n"
    assert f"killed process {grandchild}, which had 0.3 GiB" in capfd.readouterr().err


def test_available_memory_is_read_in_bytes():
    assert 2**20 < memory_watch.available_bytes() < 2**45
