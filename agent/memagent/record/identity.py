"""Run id, rank and attempt of this process, from the environment that launchers set.

All ranks of a launch must derive the same run id without communication, and another launch must
derive another:

1. MEMAGENT_RUN_ID, if set, is the id. A single process without it gets a random id.
2. An initialized process group provides rank and world size; before that the launcher's variables.
3. The id is derived from what names the launch: torchrun's run id, Slurm's job and step, Open MPI's
   job, PALS' application.
4. If all ranks are on one machine, the launcher process distinguishes launches of one name: it is
   the nearest ancestor without a rank. `torchrun` calls all of its launches "none". Slurm and Open
   MPI name theirs well, and a requeued job must remain one run.
5. If nothing names the launch, batch job and rendezvous address are used; `note` then says what to
   set.

A launcher that restarts its workers changes the restart count and the rendezvous port. Both are
ignored if possible: a restart is a new attempt of the same run.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_ID_BITS = 40
_MAX_ANCESTORS = 8
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PALS_RANKID", "SLURM_PROCID")
_WORLD_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_SIZE")
_LAUNCHES = ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "PALS_APID", "SLURM_STEP_ID")
_JOBS = (
    "SLURM_CLUSTER_NAME",
    "SLURM_SUBMIT_HOST",
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "FLUX_JOB_ID",
    "AZUREML_RUN_ID",
    "CLOUD_ML_JOB_ID",
    "TRAINING_JOB_NAME",
)
"""Batch systems and clouds; a job may launch several trainings, so these don't suffice alone."""
_ADDRESS = ("MASTER_ADDR", "MASTER_PORT")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_REMEDY = "Give all ranks of a launch the same MEMAGENT_RUN_ID, and each launch another one."

Group = tuple[int, int]
"""Rank and world size."""


class Identity(msgspec.Struct, frozen=True):
    run_id: str
    rank: int
    world_size: int
    attempt: int
    """Milliseconds since the Unix epoch at attach: a resumed run repeats steps, and must not
    overwrite those of the attempt before."""
    note: str | None = None
    """A warning for the user if the id may be wrong."""


def process_group() -> Group | None:
    """Return rank and world size of torch's process group, or None if it isn't initialized."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def launcher(environ: Mapping[str, str] = os.environ) -> str:
    """Identify the process that started all ranks of this machine.

    That is the nearest ancestor without a rank: wrapper scripts may lie between.
    """
    import psutil

    names = [name for name in _RANKS if name in environ]
    pid = os.getppid()
    try:
        for _ in range(_MAX_ANCESTORS):
            ancestor = psutil.Process(pid)
            if pid <= 1 or not any(name in ancestor.environ() for name in names):
                break
            pid = ancestor.ppid()
    except (psutil.Error, OSError):
        pass  # a process of another user isn't a rank: it is the launcher
    return f"{socket.gethostname()}:{pid}:{_start_ticks(pid)}"


def identify(
    run_id: str | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    ordinal: int = 0,
    now_s: float | None = None,
    group: Callable[[], Group | None] = process_group,
    launcher: Callable[[Mapping[str, str]], str] = launcher,
) -> Identity:
    """Identify this process.

    `run_id` is the user's, if any. `ordinal` counts the earlier runs of this process, as in a loop
    over folds.
    """
    rank, world_size = group() or (
        _first_int(_RANKS, environ, 0),
        _first_int(_WORLD_SIZES, environ, 1),
    )
    world_size = max(world_size, rank + 1)
    attempt = int((time.time() if now_s is None else now_s) * 1000)
    if run_id is not None:
        return Identity(run_id, rank, world_size, attempt)
    if world_size == 1:
        return Identity(_encode(secrets.randbits(_ID_BITS)), rank, world_size, attempt)
    variables, note = _launch_variables(environ, world_size, launcher)
    if not variables:
        return Identity(_encode(secrets.randbits(_ID_BITS)), rank, world_size, attempt, note)
    text = "\n".join([*variables, f"ordinal={ordinal}"])
    digest = hashlib.sha256(text.encode()).digest()[: _ID_BITS // 8]
    return Identity(_encode(int.from_bytes(digest, "big")), rank, world_size, attempt, note)


def _launch_variables(
    environ: Mapping[str, str], world_size: int, launcher: Callable[[Mapping[str, str]], str]
) -> tuple[list[str], str | None]:
    """Return what all ranks of this launch, and no others, should have; and a warning if any."""
    jobs = _assignments(_JOBS, environ)
    names = _assignments(_LAUNCHES, environ)
    elastic_id = environ.get("TORCHELASTIC_RUN_ID")
    if elastic_id not in (None, "none"):
        names.append(f"TORCHELASTIC_RUN_ID={elastic_id}")
    if names and elastic_id is None:
        return [*jobs, *names], None
    address = _assignments(_ADDRESS, environ)
    if _is_one_machine(environ, world_size):
        # An elastic launch may restart at another port.
        stable_address = [] if elastic_id is not None else address
        return [*jobs, *names, *stable_address, f"launcher={launcher(environ)}"], None
    if names:
        return [*jobs, *names], None
    if address or jobs:
        variables = [*jobs, *address]
        note = f"Launches with {', '.join(variables)} are recorded as one run. {_REMEDY}"
        return variables, note
    return [], f"The {world_size} ranks can't be matched: each is recorded as a run. {_REMEDY}"


def _is_one_machine(environ: Mapping[str, str], world_size: int) -> bool:
    """Return True if all ranks share a machine.

    The launcher says so, or `torch.multiprocessing` spawned them and nothing contradicts.
    """
    local_size = _first_int(_LOCAL_SIZES, environ, 0)
    if local_size:
        return local_size >= world_size
    if environ.get("MASTER_ADDR"):
        return environ["MASTER_ADDR"] in _LOOPBACK
    return not any(name in environ for name in _RANKS)


def _assignments(names: tuple[str, ...], environ: Mapping[str, str]) -> list[str]:
    return [f"{name}={environ[name]}" for name in names if environ.get(name)]


def _encode(number: int) -> str:
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(_ID_BITS - 5, -1, -5))


def _start_ticks(pid: int) -> str:
    """Return when a process started, in the kernel's ticks.

    All ranks read the same value; psutil's seconds move with the clock.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[19]  # field 22: proc(5)
    except (OSError, IndexError):
        return ""


def _first_int(names: tuple[str, ...], environ: Mapping[str, str], default: int) -> int:
    for name in names:
        if environ.get(name, "").isdigit():
            return int(environ[name])
    return default
