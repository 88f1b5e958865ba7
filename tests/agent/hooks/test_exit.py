from __future__ import annotations

import sys
import threading
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


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "completed"),
        (SystemExit(0), "completed"),
        (SystemExit(None), "completed"),
        (SystemExit(1), "failed"),
        (KeyboardInterrupt(), "failed"),
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
def test_out_of_memory_is_told_from_other_ends(error, status):
    assert status_of(error) == status


def test_an_error_is_described_in_one_line():
    assert describe_error(ValueError("a\n  b")) == "ValueError: a b"
    assert len(describe_error(ValueError("x" * 10_000))) == 2000


def test_the_real_allocators_error_is_recognised():
    import torch

    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**62, dtype=torch.uint8)
    assert status_of(caught.value) == "oom"


class UnreadableError(RuntimeError):
    def __str__(self) -> str:
        raise ValueError("no message")


def test_an_error_that_cannot_be_read_is_still_told():
    assert status_of(UnreadableError()) == "failed"
    assert describe_error(UnreadableError()) == "UnreadableError: (its message cannot be read)"


def watch(told: list) -> object:
    return install_exit_hooks(
        told.append,
        lambda: None,
        on_possible_exit=lambda error, thread: told.append((error, thread)),
    )


def hooks() -> tuple:
    return sys.excepthook, sys.exit, threading.excepthook


def test_everything_is_put_back_whatever_the_order():
    before = hooks()
    first, second = watch([]), watch([])
    first()
    assert hooks() != before
    second()
    assert hooks() == before


def test_what_somebody_else_has_wrapped_stays_and_tells_nobody(monkeypatch):
    monkeypatch.setattr(sys, "exit", sys.exit)
    told: list = []
    remove = watch(told)
    ours = sys.exit
    theirs = sys.exit = lambda *arguments: ours(*arguments)
    remove()
    assert sys.exit is theirs
    with pytest.raises(SystemExit):
        sys.exit(1)
    assert told == []


def test_a_call_of_exit_is_told_with_what_was_being_handled():
    told: list = []
    remove = watch(told)
    try:
        with pytest.raises(SystemExit) as caught:
            try:
                raise MemoryError
            except MemoryError:
                sys.exit(3)
    finally:
        remove()
    ((error, thread),) = told
    assert caught.value.code == error.code == 3 and thread == threading.get_ident()
    assert status_of(error) == "oom"


def test_a_thread_that_ends_itself_is_not_the_end():
    told: list = []
    remove = watch(told)

    def leave() -> None:
        with suppress(SystemExit):
            sys.exit(1)

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    remove()
    assert told == []


def test_a_second_interrupt_leaves_the_first_one_to_be_printed(monkeypatch):
    printed: list = []
    monkeypatch.setattr(sys, "excepthook", lambda _kind, error, _trace: printed.append(error))

    def interrupted(_error: BaseException) -> None:
        raise KeyboardInterrupt

    remove = install_exit_hooks(interrupted, lambda: None, on_possible_exit=lambda *_: None)
    first = KeyboardInterrupt("first")
    sys.excepthook(KeyboardInterrupt, first, None)
    remove()
    assert printed == [first]
