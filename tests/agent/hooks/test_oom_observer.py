"""The allocator's observer, with a fake of the C function that attaches it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from memagent.hooks.oom_observer import AllocationFailure, add_failure_listener, parse_failure


@pytest.fixture
def core():
    """The functions of a CUDA build's torch, and the observers attached to it."""
    observers = []
    return SimpleNamespace(
        _C=SimpleNamespace(_cuda_attach_out_of_memory_observer=observers.append),
        cuda=SimpleNamespace(is_initialized=lambda: True),
        observers=observers,
    )


def test_1_an_error_in_a_listener_does_not_replace_the_users(core):
    failures = []
    remove_first = add_failure_listener(core, lambda failure: 1 / 0)
    remove_second = add_failure_listener(core, failures.append)
    core.observers[0](3, 100, 1000, 10)
    remove_first()
    remove_second()
    assert failures == [
        AllocationFailure(asked_bytes=100, device=3, total_bytes=1000, free_bytes=10)
    ]


def test_2_all_runs_of_a_process_share_one_observer(core):
    failures = []
    for _ in range(3):
        remove = add_failure_listener(core, failures.append)
        core.observers[0](0, 1, 1, 1)
        remove()
        remove()
    core.observers[0](0, 2, 2, 2)
    assert len(core.observers) == 1 and len(failures) == 3


def test_3_it_attaches_nothing_before_cuda_is_initialized(core):
    core.cuda.is_initialized = lambda: False
    add_failure_listener(core, print)()
    assert core.observers == []
    add_failure_listener(SimpleNamespace(_C=SimpleNamespace(), cuda=core.cuda), print)()


@pytest.mark.parametrize(
    ("message", "asked_bytes"),
    [
        (
            "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of",
            5 * 2**29,
        ),
        ("CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.90 GiB total)", 20 * 2**20),
        ("out of memory", None),
    ],
)
def test_it_reads_the_size_from_the_message(message, asked_bytes):
    assert parse_failure(RuntimeError(message)).asked_bytes == asked_bytes


def test_it_reads_the_size_from_the_real_message_of_the_host_allocator():
    with pytest.raises(RuntimeError) as error_info:
        torch.empty(2**60, dtype=torch.uint8)
    assert parse_failure(error_info.value).asked_bytes == 2**60
