"""Memory of real descendants. The numbers are those of the module's docstring."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import psutil
import pytest

from memagent.probe import process_tree
from memagent.probe.process_tree import (
    LONE_PSS_INTERVAL_S,
    PSS_INTERVAL_S,
    ProcfsTree,
    PsutilTree,
    descendants,
    read_shared_memory,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
MIB = 2**20
CHILD = """
import sys
block = bytearray(b"x") * int(sys.stdin.readline())
print("ready", flush=True)
block += bytearray(b"x") * int(sys.stdin.readline() or 0)
print("ready", flush=True)
sys.stdin.read()
"""


class Child:
    """A process that allocates as much as requested."""

    def __init__(self, size: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.hold(size)

    def hold(self, size: int) -> None:
        self.process.stdin.write(f"{size}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ready\n"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def start_child():
    children: list[Child] = []

    def start(size: int) -> Child:
        children.append(Child(size))
        return children[-1]

    yield start
    for child in children:
        child.end()


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tree(clock):
    tree = ProcfsTree(clock=clock)
    yield tree
    tree.close()


def test_1_children_grandchildren_and_those_of_other_threads_are_found(start_child):
    others = {p.pid for p in psutil.Process().children(recursive=True)}  # of other tests
    grandchild = (
        "import subprocess, sys; "
        "subprocess.run([sys.executable, '-c', 'import sys; sys.stdin.read()'])"
    )
    with subprocess.Popen([sys.executable, "-c", grandchild], stdin=subprocess.PIPE) as child:
        children: list[Child] = []
        may_end = threading.Event()

        def make_child() -> None:  # a thread's children are listed under it while it lives
            children.append(start_child(MIB))
            may_end.wait(30)

        thread = threading.Thread(target=make_child)
        thread.start()
        try:
            wait_until(lambda: bool(children) and len(set(descendants(os.getpid()))) == 3)
            by_psutil = {p.pid for p in psutil.Process().children(recursive=True)}
            assert set(descendants(os.getpid())) == by_psutil - others
            assert children[0].process.pid not in set(descendants(os.getpid(), all_threads=False))
        finally:
            may_end.set()
            thread.join()
            child.stdin.close()


def test_1_psutil_finds_descendants_if_the_kernel_lists_no_children(start_child, monkeypatch):
    child = start_child(MIB)
    monkeypatch.setattr(process_tree, "_HAS_CHILDREN_FILES", False)
    assert child.process.pid in set(descendants(os.getpid()))
    assert list(descendants(2**22 + 1)) == []


def test_2_growth_shows_at_the_next_refresh_without_reading_pss(tree, start_child):
    child = start_child(MIB)
    tree.refresh()
    before, pss = tree.descendant_bytes, tree.pss_bytes
    child.hold(100 * MIB)
    tree.refresh()  # the clock doesn't advance
    assert tree.descendant_bytes - before == pytest.approx(100 * MIB, abs=5 * MIB)
    assert tree.pss_bytes == pss


def test_3_shares_are_read_again_after_a_while(tree, clock, start_child):
    child = start_child(MIB)
    tree.refresh()
    before = tree.pss_bytes
    child.hold(100 * MIB)
    clock.now_s += PSS_INTERVAL_S - 1
    tree.refresh()
    assert tree.pss_bytes == before
    clock.now_s += 1
    tree.refresh()
    assert tree.pss_bytes - before == pytest.approx(100 * MIB, abs=5 * MIB)


def test_3_the_share_of_a_process_alone_is_read_rarely_while_its_memory_stays_the_same(clock):
    tree = ProcfsTree(clock=clock)
    tree.refresh()
    first = tree._root.read_at
    clock.now_s += PSS_INTERVAL_S
    tree.refresh()
    assert tree._root.read_at == first
    block = bytearray(b"x") * (tree._root.anonymous_bytes // 4)
    tree.refresh()
    assert tree._root.read_at == clock.now_s and tree.pss_bytes > len(block)
    clock.now_s += LONE_PSS_INTERVAL_S
    tree.refresh()
    assert tree._root.read_at == clock.now_s
    tree.close()


def test_3_a_new_process_is_read_at_once(tree, clock, start_child):
    tree.refresh()
    start_child(80 * MIB)
    tree.refresh()
    assert all(process.shared is not None for process in tree._descendants.values())
    assert tree.descendant_bytes > 80 * MIB


class SlowClock(Clock):
    """A clock that advances by `each_s` at each reading."""

    each_s = 0.0

    def __call__(self) -> float:
        self.now_s += self.each_s
        return self.now_s


def readings(tree):
    return {pid: process.read_at for pid, process in tree._descendants.items()}


def test_3_reading_shares_takes_no_more_than_a_hundredth_of_the_time(clock, start_child):
    walks = SlowClock()
    tree = ProcfsTree(clock=clock, thread_clock=walks)
    start_child(MIB)
    tree.refresh()
    clock.now_s += PSS_INTERVAL_S
    walks.each_s = 0.5  # of processor time: 50 s follow without a walk
    tree.refresh()
    walks.each_s = 0.0
    first = readings(tree)
    clock.now_s += PSS_INTERVAL_S
    tree.refresh()
    assert readings(tree) == first
    child = start_child(MIB)  # a new one is read nevertheless
    tree.refresh()
    assert readings(tree) == {**first, child.process.pid: clock.now_s}
    clock.now_s += PSS_INTERVAL_S
    tree.refresh()
    assert readings(tree) != first | {child.process.pid: clock.now_s - PSS_INTERVAL_S}
    tree.close()


def test_3_a_walk_that_waits_for_the_processor_delays_no_other(start_child):
    clock = SlowClock()
    tree = ProcfsTree(clock=clock)  # the processor time is the real one
    start_child(MIB)
    clock.each_s = 20.0
    tree.refresh()
    assert tree._idle_until - clock.now_s < PSS_INTERVAL_S
    tree.close()


def test_3_a_refresh_reads_a_few_processes_at_a_time_the_new_ones_first(start_child):
    clock, walks = Clock(), SlowClock()
    tree = ProcfsTree(clock=clock, thread_clock=walks)
    for _ in range(6):
        start_child(MIB)
    walks.each_s = 0.004
    read = []
    while len(read) < 30 and (not read or read[-1] < len(tree._descendants)):
        tree.refresh()
        read.append(sum(process.shared is not None for process in tree._descendants.values()))
        clock.now_s += 20.0
    assert read[0] < len(tree._descendants) == read[-1]
    assert read == sorted(set(read))  # a few more each time
    tree.close()


def test_3_an_unread_program_counts_with_all_its_memory(tree, start_child, monkeypatch):
    tree.refresh()
    before = tree.descendant_bytes
    monkeypatch.setattr(process_tree, "_MAX_WALK_BYTES", 0)
    start_child(60 * MIB)
    tree.refresh()
    assert tree.descendant_bytes - before == pytest.approx(60 * MIB, abs=15 * MIB)


def test_3_an_unread_fork_counts_with_what_it_adds():
    code = f"""
import os
from memagent.probe import process_tree
process_tree._MAX_WALK_BYTES = 0
held = bytearray(b"x") * {200 * MIB}
(ready, is_ready), (go, goes) = os.pipe(), os.pipe()
def fork():
    if not os.fork():
        os.write(is_ready, b".")
        os.read(go, 1)
        private = bytearray(b"y") * {60 * MIB}
        os.write(is_ready, b".")
        os.read(go, 1)
        os._exit(0)
    os.read(ready, 1)
tree = process_tree.ProcfsTree()
fork()
tree.refresh()
print(tree.descendant_bytes)
os.write(goes, b".")
os.read(ready, 1)
more = bytearray(b"x") * {100 * MIB}  # the parent's own growth is not subtracted
tree.refresh()
print(tree.descendant_bytes, tree.pss_bytes)
os.write(goes, b".")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    empty, grown, pss = done.stdout.split()
    assert int(empty) < 5 * MIB
    assert int(grown) == pytest.approx(60 * MIB, abs=5 * MIB) and pss == "None"


def test_4_pages_shared_by_forked_children_count_once():
    code = f"""
import os, sys, time
from memagent.probe.process_tree import ProcfsTree
held = bytearray(b"x") * {200 * MIB}
ready, done = os.pipe(), os.pipe()
for number in range(3):
    if not os.fork():
        private = bytearray(b"y") * ({60 * MIB} * (number == 0))
        os.write(ready[1], b".")
        os.close(done[1])
        os.read(done[0], 1)
        os._exit(0)
for _ in range(3):
    os.read(ready[0], 1)
tree = ProcfsTree()
tree.refresh()
# a refresh reads only some of them
while any(process.shared is None for process in tree._descendants.values()):
    time.sleep(0.05)
    tree.refresh()
tree._root.read_at = tree._idle_until = float("-inf")
tree.refresh()  # once more for this process, now that all others are read
print(tree.descendant_bytes, tree.pss_bytes)
"""
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    descendant_bytes, pss = map(int, output.split())
    assert (
        60 * MIB < descendant_bytes < 100 * MIB
    )  # a plain sum of resident memory would be above 660 MiB
    assert 260 * MIB < pss < 310 * MIB


def test_a_child_that_ended_has_no_memory_even_before_it_is_reaped(tree, start_child):
    tree.refresh()
    before = tree.descendant_bytes
    child = start_child(100 * MIB)
    tree.refresh()
    assert tree.descendant_bytes - before > 100 * MIB
    child.process.kill()
    wait_until(lambda: psutil.Process(child.process.pid).status() == psutil.STATUS_ZOMBIE)
    tree.refresh()
    assert tree.descendant_bytes == pytest.approx(before, abs=5 * MIB)
    child.process.wait()
    tree.refresh()
    assert tree.descendant_bytes == pytest.approx(before, abs=5 * MIB)


def test_it_closes_the_files_of_ended_processes(clock, start_child):
    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = files()
    tree = ProcfsTree(clock=clock)
    tree.refresh()
    with_others = files()
    child = start_child(MIB)
    with_pipes = files()
    tree.refresh()
    assert files() == with_pipes + 1
    child.end()
    tree.refresh()
    assert files() == with_others
    tree.close()
    assert files() == before


def test_shared_memory_of_this_process_adds_up_and_that_of_no_process_is_none():
    shares = read_shared_memory(os.getpid())
    assert 0 < shares.private_bytes <= shares.proportional_bytes <= shares.resident_bytes
    assert read_shared_memory(2**22 + 1) is None


def test_without_proc_resident_memory_is_summed(start_child):
    start_child(50 * MIB)
    tree = PsutilTree()
    tree.refresh()
    assert tree.descendant_bytes > 50 * MIB
    assert tree.pss_bytes is None
    tree.close()
