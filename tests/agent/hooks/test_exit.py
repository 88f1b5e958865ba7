from __future__ import annotations

import os
import signal
import sys
import threading
import types
from contextlib import suppress

import pytest

from memagent.hooks.exit import describe_error, install_exit_hooks, status_of


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


def chained() -> BaseException:
    try:
        try:
            raise MemoryError
        except MemoryError as error:
            raise ValueError("while tidying up") from error
    except ValueError as error:
        return error


class TrialPruned(Exception):  # noqa: N818 - named as Optuna's
    pass


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "completed"),
        (SystemExit(0), "completed"),
        (SystemExit(None), "completed"),
        (SystemExit(1), "failed"),
        (SystemExit("no data"), "failed"),
        (SystemExit(143), "stopped"),
        (KeyboardInterrupt(), "stopped"),
        (TrialPruned(), "stopped"),
        (ValueError("out of memory"), "failed"),
        (MemoryError(), "oom"),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "oom"),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"
            ),
            "oom",
        ),
        (RuntimeError("std::bad_alloc"), "oom"),
        (RuntimeError("MemoryError: "), "oom"),
        (ImportError("libx.so: cannot allocate memory in static TLS block"), "oom"),
        (OSError(12, "Cannot allocate memory"), "oom"),
        (RuntimeError("shape mismatch"), "failed"),
        (chained(), "oom"),
    ],
)
def test_it_recognizes_out_of_memory_errors(error, status):
    assert status_of(error) == status


def test_an_error_is_described_in_one_line():
    assert describe_error(ValueError("a\n  b")) == "ValueError: a b"
    assert len(describe_error(ValueError("x" * 10_000))) == 2000


def test_it_recognizes_the_real_allocators_error():
    import torch

    with pytest.raises(RuntimeError) as error_info:
        torch.empty(2**62, dtype=torch.uint8)
    assert status_of(error_info.value) == "oom"


class UnreadableError(RuntimeError):
    def __str__(self) -> str:
        raise ValueError("no message")


def test_an_error_without_a_readable_message_is_described():
    assert status_of(UnreadableError()) == "failed"
    assert describe_error(UnreadableError()) == "UnreadableError: (its message cannot be read)"


def install(reported: list) -> object:
    return install_exit_hooks(
        reported.append,
        lambda: None,
        on_possible_exit=lambda error, thread: reported.append((error, thread)),
    )


def hooks() -> tuple:
    return sys.excepthook, sys.exit, os._exit, os.execv, os.execve, threading.excepthook


def test_removal_restores_everything_in_any_order():
    before = hooks()
    first, second = install([]), install([])
    first()
    assert hooks() != before
    second()
    assert hooks() == before


def test_a_hook_wrapped_by_other_code_stays_and_does_nothing(monkeypatch):
    monkeypatch.setattr(sys, "exit", sys.exit)
    reported: list = []
    remove = install(reported)
    wrapped = sys.exit
    other = sys.exit = lambda *arguments: wrapped(*arguments)
    remove()
    assert sys.exit is other
    with pytest.raises(SystemExit):
        sys.exit(1)
    assert reported == []


def test_it_reports_sys_exit_with_the_handled_error():
    reported: list = []
    remove = install(reported)
    try:
        with pytest.raises(SystemExit) as error_info:
            try:
                raise MemoryError
            except MemoryError:
                sys.exit(3)
    finally:
        remove()
    ((error, thread),) = reported
    assert error_info.value.code == error.code == 3 and thread == threading.get_ident()
    assert status_of(error) == "oom"


def test_os_exit_waits_for_the_end_of_the_run_but_not_for_ever(monkeypatch):
    """A signal handler may call it while its thread holds a lock that the end of the run needs."""
    statuses: list[int] = []
    monkeypatch.setattr(os, "_exit", lambda status: statuses.append(status))
    monkeypatch.setattr("memagent.hooks.exit.OS_EXIT_DEADLINE_S", 0.1)
    reported: list = []
    lock, ended = threading.Lock(), threading.Event()

    def end() -> None:
        with lock:
            ended.set()

    remove = install_exit_hooks(
        reported.append,
        end,
        on_possible_exit=lambda error, thread: reported.append((error, thread)),
    )
    with lock:
        os._exit(3)
        assert statuses == [3] and not ended.is_set()
    os._exit(status=0)
    assert statuses == [3, 0] and ended.wait(60)
    remove()
    assert [(error.code, thread) for error, thread in reported] == [
        (3, threading.get_ident()),
        (0, threading.get_ident()),
    ]


def test_system_exit_in_a_thread_is_ignored():
    reported: list = []
    remove = install(reported)

    def leave() -> None:
        with suppress(SystemExit):
            sys.exit(1)

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    remove()
    assert reported == []


def test_a_second_interrupt_still_prints_the_first(monkeypatch):
    printed: list = []
    monkeypatch.setattr(sys, "excepthook", lambda _kind, error, _trace: printed.append(error))

    def interrupted(_error: BaseException) -> None:
        raise KeyboardInterrupt

    remove = install_exit_hooks(interrupted, lambda: None, on_possible_exit=lambda *_: None)
    first = KeyboardInterrupt("first")
    sys.excepthook(KeyboardInterrupt, first, None)
    remove()
    assert printed == [first]


def test_a_script_that_signals_itself_sees_no_frame_of_the_hooks():
    remove = install([])
    frames = []
    before = signal.signal(signal.SIGUSR1, lambda _number, frame: frames.append(frame.f_code))
    try:
        assert os.kill.__name__ == "kill"
        os.kill(os.getpid(), signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(ProcessLookupError) as error_info:
            os.kill(2**22 + 1, 0)  # above the kernel's largest process id
        with pytest.raises(TypeError, match="2 arguments"):
            os.kill()
    finally:
        signal.signal(signal.SIGUSR1, before)
        remove()
    this = sys._getframe().f_code
    assert frames == [this, this]
    assert error_info.traceback[-1].frame.code.raw is this
    assert isinstance(os.kill, types.BuiltinFunctionType)


def test_two_runs_share_a_wrapper_and_the_last_takes_it_off():
    original = os.kill
    first, second = install([]), install([])
    first()
    assert os.kill is not original
    second()
    assert os.kill is original
