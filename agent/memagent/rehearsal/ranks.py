"""One rank of many, rehearsed alone.

1. The environment is that of the first process which `torchrun` starts (`rank_environment`).
2. The store is the process's own: the other ranks never come.
3. The device answers NCCL at once, as if all ranks had the same data. Gloo would wait for the
   others, so it isn't started: its collectives go to NCCL, which takes only tensors on a device.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from importlib import import_module
from typing import Any

_MASTER_PORT = 29500
_BACKENDS = (None, "gloo", "cpu:gloo,cuda:nccl", "cuda:nccl,cpu:gloo")


def rank_environment(ranks: int, devices: int) -> dict[str, str]:
    """Return the variables of rank 0 on the first of the machines."""
    if ranks == 1:
        return {}
    local = min(ranks, devices)
    return {
        "RANK": "0",
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": str(max(1, ranks // local)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_MASTER_PORT),
        "TORCHELASTIC_RUN_ID": "rehearsal",
    }


def rehearse_alone(ranks: int) -> None:
    """Let `init_process_group` begin without the other ranks."""
    from torch import distributed

    if ranks == 1 or not distributed.is_available():
        return

    distributed_c10d = import_module("torch.distributed.distributed_c10d")
    # by its name: the package has a function of that name, too
    rendezvous = import_module("torch.distributed.rendezvous")

    def begin(_url: str, *_arguments: Any, **_keywords: Any) -> Iterator[Any]:
        yield distributed.HashStore(), 0, ranks

    handlers: dict[str, Any] = rendezvous._rendezvous_handlers
    for scheme in ("env", "tcp", "file"):
        handlers[scheme] = begin
    for name in ("init_process_group", "new_group"):
        replacement = _with_nccl(getattr(distributed_c10d, name))
        for module in (distributed_c10d, distributed):
            setattr(module, name, replacement)


def communicators() -> int:
    """Return how many communicators of NCCL this process has opened on a device."""
    device = ctypes.CDLL(None)
    count = getattr(device, "memagent_communicators", None)
    return int(count()) if count else 0


def _with_nccl(original: Any) -> Any:
    """Return the function with NCCL for backends that would wait for other ranks."""

    @functools.wraps(original)
    def begin(*arguments: Any, **keywords: Any) -> Any:
        if arguments and arguments[0] in _BACKENDS and original.__name__ == "init_process_group":
            arguments = ("nccl", *arguments[1:])
        elif keywords.get("backend") in _BACKENDS and not arguments:
            keywords["backend"] = "nccl"
        return original(*arguments, **keywords)

    return begin
