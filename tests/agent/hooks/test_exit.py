from __future__ import annotations

import pytest

from memagent.hooks.exit import describe_error, status_of


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
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"), "oom"),
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
