"""Which run, rank and attempt this process is, from what launchers put into the environment.

All ranks of one launch must arrive at the same run id without talking to each other: it is given (MEMAGENT_RUN_ID), or derived
from what the launcher tells all of them (torchrun's run id and rendezvous address, Slurm's job id), or random for a single process.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LAUNCHES = (
    "TORCHELASTIC_RUN_ID",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "OMPI_MCA_ess_base_jobid",
    "MASTER_ADDR",
    "MASTER_PORT",
)


@dataclass(frozen=True)
class Identity:
    run_id: str
    rank: int
    world_size: int
    attempt: int
    """Milliseconds since the Unix epoch when this process attached: a resumed run replays steps, and must not overwrite them."""


def identify(
    run_id: str | None = None, environ: Mapping[str, str] = os.environ, *, now_s: float | None = None
) -> Identity:
    """Identity of this process; `run_id` is the one the user gave, if any."""
    rank, world_size = _first_int(_RANKS, environ, 0), _first_int(_WORLD_SIZES, environ, 1)
    attempt = int((time.time() if now_s is None else now_s) * 1000)
    return Identity(run_id or _launch_id(environ, world_size) or _random_id(), rank, max(world_size, rank + 1), attempt)


def _launch_id(environ: Mapping[str, str], world_size: int) -> str | None:
    if world_size <= 1:
        return None
    facts = [f"{name}={environ[name]}" for name in _LAUNCHES if environ.get(name)]
    if not facts:
        return None
    restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    digest = hashlib.sha256("\n".join((*facts, restart, environ.get("USER", ""))).encode()).digest()
    return _spell(int.from_bytes(digest[:5], "big"))


def _random_id() -> str:
    return _spell(secrets.randbits(40))


def _spell(number: int) -> str:
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(35, -1, -5))


def _first_int(names: tuple[str, ...], environ: Mapping[str, str], default: int) -> int:
    for name in names:
        if environ.get(name, "").isdigit():
            return int(environ[name])
    return default
