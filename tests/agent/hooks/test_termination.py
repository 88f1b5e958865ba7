"""Each case is a process of its own that gets a real signal."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from memagent.hooks.termination import frames_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux is watched")

_BEGIN = """
import faulthandler, os, signal, sys, time
from memagent.hooks.termination import termination_watcher

heard = []
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, for all that it starts

def told(termination):
    print(termination.name, bool(termination.frames), termination.is_handled, flush=True)
    heard.append(termination)

def caught(name):
    bits = next(line for line in open("/proc/self/status") if line.startswith("SigCgt"))
    return bool(int(bits.split()[1], 16) >> (getattr(signal, name) - 1) & 1)

def wait():
    print("ready", flush=True)
    time.sleep(60)
"""


def end_of(script, *signals):
    """Return exit status and output; each signal is sent once the script says that it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", _BEGIN + script], stdout=subprocess.PIPE, text=True
    )
    lines = []
    sent = list(signals)
    for line in process.stdout:
        lines.append(line.strip())
        if lines[-1] == "ready":
            process.send_signal(sent.pop(0))
    process.stdout.close()
    return process.wait(), [line for line in lines if line != "ready"]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGXCPU"])
def test_a_signal_that_ends_the_process_is_told_and_then_ends_it(name):
    number = getattr(signal, name)
    script = """
termination_watcher().add(told)
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
wait()
"""
    status, lines = end_of(script, number)
    assert status == -number
    assert lines == [f"{name} True False"]


def test_a_handler_of_the_script_gets_the_signal_as_before():
    script = """
def stop(number, frame):  # print isn't reentrant, and the signal may come while it writes
    os.write(1, b"handler\\n")

signal.signal(signal.SIGTERM, stop)
termination_watcher().add(told)
try:
    print("ready", flush=True)
    while not heard:
        time.sleep(0.01)
    wait()
finally:
    assert signal.getsignal(signal.SIGTERM) is stop
"""
    status, lines = end_of(script, signal.SIGTERM, signal.SIGKILL)
    assert status == -signal.SIGKILL
    assert sorted(lines) == ["SIGTERM True True", "handler"]


@pytest.mark.parametrize(
    "taken",
    [
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "faulthandler.register(signal.SIGTERM, open(os.devnull, 'w'))",
    ],
)
def test_a_signal_that_is_ignored_or_has_a_handler_in_c_is_left_alone(taken):
    script = f"""
{taken}
before = caught("SIGTERM")
remove = termination_watcher().add(told)
assert not termination_watcher().is_ending(signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)
remove()
print(caught("SIGTERM") == before, caught("SIGHUP"))
"""
    assert end_of(script) == (0, ["True False"])


@pytest.mark.parametrize(
    "taken",
    [
        "signal.signal(signal.SIGTERM, lambda *_: print('handler', flush=True))",
        "faulthandler.register(signal.SIGTERM, open(os.devnull, 'w'))",
    ],
)
def test_what_the_script_has_set_since_is_not_undone(taken):
    script = f"""
remove = termination_watcher().add(told)
{taken}
remove()
os.kill(os.getpid(), signal.SIGTERM)
print(caught("SIGTERM"))
"""
    status, lines = end_of(script)
    assert (status, lines[-1]) == (0, "True")
    assert lines[:-1] == (["handler"] if "handler'" in taken else [])


def test_the_last_listener_gives_all_signals_back_and_the_next_one_takes_them():
    script = """
for _ in range(3):
    first, second = (termination_watcher().add(told) for _ in range(2))
    first()
    assert caught("SIGTERM")
    second()
    assert not caught("SIGTERM")
    assert not caught("SIGUSR1")
termination_watcher().add(told)
wait()
"""
    assert end_of(script, signal.SIGTERM) == (-signal.SIGTERM, ["SIGTERM True False"])


def test_a_forked_child_has_the_default_action():
    script = """
termination_watcher().add(told)
for pause in (0, 0, 0, 0.2):
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(1)
    time.sleep(pause)
    os.kill(child, signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
wait()
"""
    status, lines = end_of(script, signal.SIGTERM)
    assert status == -signal.SIGTERM
    assert lines == [*4 * [str(-signal.SIGTERM)], "SIGTERM True False"]


def test_a_child_of_a_script_with_its_own_handler_disturbs_nothing():
    script = """
termination_watcher().add(told)
signal.signal(signal.SIGTERM, lambda *_: print("handler", flush=True))
child = os.fork()
if not child:
    os._exit(0)
os.waitpid(child, 0)
os.kill(os.getpid(), signal.SIGTERM)
wait()
"""
    status, lines = end_of(script, signal.SIGHUP)
    assert (status, lines) == (-signal.SIGHUP, ["handler", "SIGHUP True False"])


def test_a_script_that_closes_every_descriptor_still_ends_by_the_signal():
    script = """
termination_watcher().add(told)
os.closerange(3, 4096)
files = [open(os.devnull, "w") for _ in range(500)]
wait()
"""
    status, lines = end_of(script, signal.SIGTERM)
    assert (status, lines) == (-signal.SIGTERM, [])


def test_frames_of_a_stack_are_innermost_first():
    stack = """Stack (most recent call first):
  File "/home/me/model.py", line 7 in forward
  File "/home/me/train.py", line 42 in <module>
"""
    assert frames_of(stack) == (("/home/me/model.py", 7), ("/home/me/train.py", 42))
    assert frames_of("Stack (most recent call first):\n") == ()
