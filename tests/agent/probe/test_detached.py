"""What a script sees of memagent's child processes: nothing; and what it sees of its own: all."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from memagent.estimator.trace.isolation import can_fork
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not can_fork(), reason="this system cannot fork a tracing process")

LISTEN = """
import os, signal, sys, threading, time
from memagent.probe.detached import fork_detached, without_child_signals
from memagent.estimator.trace.isolation import ForkedProcess
events = []
signal.signal(signal.SIGCHLD, lambda *_: events.append("child ended"))
os.register_at_fork(
    before=lambda: events.append("before"),
    after_in_parent=lambda: events.append("parent"),
    after_in_child=lambda: print("in the child", flush=True),
)
def has_children():
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) or True
    except ChildProcessError:
        return False
"""
"""A script that listens to children, and `has_children()`."""


def run(code: str) -> str:
    """Run a script and return its output; its errors fail the test."""
    command = [sys.executable, "-c", LISTEN + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def test_a_trace_is_no_child_calls_no_hook_and_sends_no_signal():
    output = run("""
process = ForkedProcess(lambda: [b"42"])
print(has_children(), process.receive(timeout_s=60))
process.end()
time.sleep(0.1)
print(has_children(), events)
""")
    assert output == "False b'42'\nFalse []\n"


def test_it_forks_beside_busy_threads_and_in_any_thread():
    """Other threads ask for the GIL while it forks: no bytecode may run before the state is new."""
    output = run("""
is_over = False
def work():
    while not is_over:
        sum(range(50))
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
def fork():
    process = ForkedProcess(lambda: [bytes(100_000)])
    print(len(process.receive(timeout_s=60)))
    process.end()
[fork() for _ in range(8)]
thread = threading.Thread(target=fork)
thread.start()
thread.join()
is_over = True
""")
    assert output == "100000\n" * 9


def test_it_repeats_the_signal_of_a_child_that_ended_meanwhile():
    output = run("""
with without_child_signals():
    pid = os.posix_spawn(sys.executable, [sys.executable, "-S", "-c", ""], os.environ)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    print(events)
print(events, os.waitpid(pid, 0)[0] == pid)
""")
    assert output == "[]\n['child ended'] True\n"


def test_a_handler_that_the_script_sets_meanwhile_stays():
    output = run("""
with without_child_signals():
    signal.signal(signal.SIGCHLD, lambda *_: events.append("new"))
os.kill(os.getpid(), signal.SIGCHLD)
print(events)
""")
    assert output == "['new']\n"


def test_it_reports_how_its_process_ended():
    output = run("""
process = ForkedProcess(lambda: [os.kill(os.getpid(), signal.SIGSEGV)])
print(process.receive(timeout_s=60), process.end())
""")
    assert output == "b'' -11\n"


HANG = """
def hang():
    yield b"started"
    time.sleep(600)
process = ForkedProcess(hang)
assert process.receive(timeout_s=60)
"""
FORK = """
import torch, memagent
from memagent.estimator import background
background._run_child = lambda _request: time.sleep(600)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = memagent.attach(model, optimizer)
model(torch.ones(1, 4)).sum().backward()
if os.fork() == 0:
    os.close(writer)
    time.sleep(600)
"""
"""A worker that outlives the script: it has copies of all files that were open."""


@pytest.mark.parametrize(
    ("start", "end"),
    [
        pytest.param(HANG, "os.kill(os.getpid(), signal.SIGKILL)", id="killed"),
        pytest.param(HANG, "os._exit(0)", id="exit"),
        pytest.param(HANG, "process.cancel(); time.sleep(600)", id="cancelled"),
        pytest.param(HANG, "os.execlp('sleep', 'sleep', '600')", id="another program"),
        pytest.param(FORK, "os.kill(os.getpid(), signal.SIGKILL)", id="with a worker"),
    ],
)
def test_the_trace_ends_with_the_script(tmp_path: Path, start: str, end: str):
    """Its processes hold the write end of a pipe, which ends with the last of them."""
    reader, writer = os.pipe()
    code = f"{LISTEN}\nwriter = int(sys.argv[1]){start}os.close(writer)\n{end}\n"
    script = subprocess.Popen(
        [sys.executable, "-c", code, str(writer)],
        pass_fds=[writer],
        env={**os.environ, "MEMAGENT_DIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(writer)
    try:
        assert select.select([reader], [], [], 60)[0] and os.read(reader, 1) == b""
    finally:
        os.killpg(script.pid, signal.SIGKILL)
        script.wait()
        os.close(reader)


SLOW_MODULE = """
import __main__
__main__.began.set()
__main__.may_end.wait()
value = 1
"""
FORK_DURING_IMPORT = """
import os, threading
from memagent.probe.detached import forks_wait

began, may_end = threading.Event(), threading.Event()

def load():
    with forks_wait():
        import slow

# called before memagent's own function, as the newest one comes first
os.register_at_fork(before=may_end.set)
thread = threading.Thread(target=load)
thread.start()
began.wait()
child = os.fork()
if child == 0:
    import slow
    with forks_wait():  # the child's lock is free
        os._exit(slow.value)
thread.join()
os.fork() or os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


DETACH_DURING_IMPORT = """
import os, select, threading
from memagent.probe import detached

began, may_end = threading.Event(), threading.Event()
wait_for_imports = detached._wait_for_imports

def load():
    with detached.forks_wait():
        import slow

def let_it_end():
    may_end.set()
    wait_for_imports()

detached._wait_for_imports = let_it_end
thread = threading.Thread(target=load)
thread.start()
began.wait()
reader, writer = os.pipe()
if detached.fork_detached():
    import slow
    os.write(writer, b"%d" % slow.value)
    os._exit(0)
may_end.set()
thread.join()
print(os.read(reader, 1).decode() if select.select([reader], [], [], 30)[0] else "it hangs")
"""


def test_its_thread_keeps_its_identity_when_the_first_child_has_ended(tmp_path):
    """Both share memory: the kernel would set libc's id of the thread to 0, and its locks hang."""
    report = tmp_path / "owner"
    run(f"""
import ctypes
from pathlib import Path
if fork_detached():
    libc = ctypes.PyDLL(None)
    while not Path({str(report)!r} + ".go").exists():
        time.sleep(0.01)
    mutex = (ctypes.c_int * 10)(0, 0, 0, 0, 1)  # kind 1: recursive; its third word is the owner
    libc.pthread_mutex_lock(mutex)
    Path({str(report)!r}).write_text(f"{{mutex[2]}}\\n")
    os._exit(0)
Path({str(report)!r} + ".go").touch()  # the first child was killed and reaped
""")
    wait_until(lambda: report.exists() and report.read_text().endswith("\n"))
    assert int(report.read_text()) > 0


def test_a_script_that_ends_while_it_forks_leaves_no_process_between(tmp_path):
    """The first child waits for the second, and holds copies of all that the script has open."""
    report = tmp_path / "detached"
    script = f"""
from pathlib import Path
os.kill = lambda *_: os._exit(0)  # the script ends before it has ended the first child
if fork_detached():
    Path({str(report)!r}).write_text(f"{{os.getpid()}}\\n")
    time.sleep(600)
"""
    run(script)
    wait_until(lambda: report.exists() and report.read_text().endswith("\n"))
    detached = psutil.Process(int(report.read_text()))
    try:
        wait_until(lambda: not is_copy(detached.parent(), detached))
    finally:
        detached.kill()


def is_copy(parent: psutil.Process | None, child: psutil.Process) -> bool:
    try:
        return parent is not None and parent.cmdline() == child.cmdline()
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    "script", [FORK_DURING_IMPORT, DETACH_DURING_IMPORT], ids=["os.fork", "detached"]
)
def test_a_forked_child_can_import_what_a_thread_was_importing(tmp_path, script):
    (tmp_path / "slow.py").write_text(SLOW_MODULE)
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
