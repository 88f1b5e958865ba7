"""Two ranks on this machine, with the environment that torchrun gives them.

`two_ranks.py SCRIPT` and `two_ranks.py -m MODULE ARGUMENTS` run under the fork server: torchrun and
each of its ranks would import torch, which takes three seconds of processor time.
"""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import sys
import time
from pathlib import Path

from torch.distributed import TCPStore

RANKS = 2


def main(command: list[str]) -> int:
    """Fork the ranks, then start the store that they meet at: a fork would lose its threads."""
    pipes = [os.pipe() for _ in range(RANKS)]
    ranks = set()
    for rank, (reader, _) in enumerate(pipes):
        pid = os.fork()
        if pid == 0:
            run_rank(rank, os.read(reader, 5).decode(), command)
            return 0
        ranks.add(pid)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for _, writer in pipes:
        os.write(writer, str(store.port).encode())
    return wait_for_all(ranks)


def run_rank(rank: int, port: str, command: list[str]) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "LOCAL_WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    atexit.register(await_gloo)
    is_module = command[0] == "-m"
    sys.argv = command[is_module:]
    if is_module:
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(command[0], run_name="__main__")


def await_gloo() -> None:
    """Wait until the other threads sleep.

    torch aborts a process where a thread of gloo drops its last tensors while the interpreter ends
    (pytorch/pytorch issue 190489): without memagent, too, and on a busy machine often.
    """

    def is_running(thread: Path) -> bool:
        try:
            return ") R " in (thread / "stat").read_text()
        except OSError:  # it has ended
            return False

    while sum(map(is_running, Path("/proc/self/task").iterdir())) > 1:
        time.sleep(0.01)


def wait_for_all(ranks: set[int]) -> int:
    """Return the first status that isn't 0, and kill the other rank, which would wait for it."""
    while ranks:
        pid, status = os.wait()
        ranks.remove(pid)
        if status:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
