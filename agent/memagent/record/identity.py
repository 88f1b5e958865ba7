"""Which run, rank and attempt this process is, from what launchers put into the environment.

All ranks of one launch must arrive at the same run id without talking to each other, and another launch at another one:

1. The id that the user gave (MEMAGENT_RUN_ID) is the id. A single process without one gets a random id.
2. The process group, once it is initialised, knows rank and world size; before that the launcher's variables do.
3. The id is derived from what names the launch: torchrun's run id, Slurm's job and step, Open MPI's job, PALS' application.
4. Where all ranks are on one machine, the launcher itself, the nearest ancestor without a rank, tells launches of one name apart:
   `torchrun` calls all of its launches "none". Slurm and Open MPI name theirs well, and a requeued job shall stay one run.
5. Where nothing names the launch, batch job and rendezvous address have to do; `note` then says what to set.

What changes when a launcher restarts its workers (restart count, the port of a new rendezvous) is left out where it can be: a restart
is a new attempt of the same run.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PALS_RANKID", "SLURM_PROCID")
_WORLD_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_SIZE")
_LAUNCHES = ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "PALS_APID", "SLURM_STEP_ID")
_JOBS = (
    "SLURM_CLUSTER_NAME", "SLURM_SUBMIT_HOST", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID",
    "AZUREML_RUN_ID", "CLOUD_ML_JOB_ID", "TRAINING_JOB_NAME",
)  # fmt: skip
"""Batch systems and clouds; one job may launch several trainings, so these never suffice alone."""
_ADDRESS = ("MASTER_ADDR", "MASTER_PORT")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_REMEDY = "give all ranks of a launch the same MEMAGENT_RUN_ID, and each launch another one"

Group = tuple[int, int]
"""Rank and world size."""


@dataclass(frozen=True)
class Identity:
    run_id: str
    rank: int
    world_size: int
    attempt: int
    """Milliseconds since the Unix epoch when this process attached: a resumed run replays steps, and must not overwrite them."""
    note: str | None = None
    """What to tell the user where the id may not be what is wanted."""


def process_group() -> Group | None:
    """Rank and world size of torch's process group, where one is initialised."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def launcher(environ: Mapping[str, str] = os.environ) -> str:
    """The process that started all ranks of this machine: the nearest ancestor that has no rank itself, for scripts may lie between."""
    import psutil

    names = [name for name in _RANKS if name in environ]
    pid = os.getppid()
    try:
        for _ in range(8):
            ancestor = psutil.Process(pid)
            if pid <= 1 or not any(name in ancestor.environ() for name in names):
                break
            pid = ancestor.ppid()
    except (
        psutil.Error,
        OSError,
    ):  # another user's process: it is not one of ours, so it is the launcher
        pass
    return f"{socket.gethostname()}:{pid}:{_started_at(pid)}"


def identify(
    run_id: str | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    ordinal: int = 0,
    now_s: float | None = None,
    group: Callable[[], Group | None] = process_group,
    launcher: Callable[[Mapping[str, str]], str] = launcher,
) -> Identity:
    """Identity of this process. `run_id` is the one the user gave, if any; `ordinal` counts the runs that this process had before,
    as in a loop over folds."""
    rank, world_size = group() or (
        _first_int(_RANKS, environ, 0),
        _first_int(_WORLD_SIZES, environ, 1),
    )
    world_size = max(world_size, rank + 1)
    attempt = int((time.time() if now_s is None else now_s) * 1000)
    if run_id is not None:
        return Identity(run_id, rank, world_size, attempt)
    if world_size == 1:
        return Identity(_random_id(), rank, world_size, attempt)
    facts, note = _launch_facts(environ, world_size, launcher)
    if not facts:
        return Identity(_random_id(), rank, world_size, attempt, note)
    return Identity(_derived_id([*facts, f"ordinal={ordinal}"]), rank, world_size, attempt, note)


def _launch_facts(
    environ: Mapping[str, str], world_size: int, launcher: Callable[[Mapping[str, str]], str]
) -> tuple[list[str], str | None]:
    """What all ranks of this launch, and no others, can be expected to see; and what to warn of."""
    named = _present(_LAUNCHES, environ)
    elastic_id = environ.get("TORCHELASTIC_RUN_ID", "none")
    if elastic_id != "none":
        named.append(f"TORCHELASTIC_RUN_ID={elastic_id}")
    jobs = _present(_JOBS, environ)
    is_elastic, is_named = "TORCHELASTIC_RUN_ID" in environ, bool(named)
    if is_named and not is_elastic:
        return [*jobs, *named], None
    address = [] if is_elastic else _present(_ADDRESS, environ)
    if _is_one_machine(environ, world_size):
        return [*jobs, *named, *address, f"launcher={launcher(environ)}"], None
    if is_named:
        return [*jobs, *named], None
    address = _present(_ADDRESS, environ)
    if address or jobs:
        return [
            *jobs,
            *address,
        ], f"launches with {', '.join([*jobs, *address])} are taken for one run: {_REMEDY}"
    return (
        [],
        f"nothing tells that the {world_size} ranks belong together, each records a run of its own: {_REMEDY}",
    )


def _is_one_machine(environ: Mapping[str, str], world_size: int) -> bool:
    """Whether all ranks share a machine, as the launcher says; or, for what `torch.multiprocessing` spawned, as nothing denies."""
    local_size = _first_int(_LOCAL_SIZES, environ, 0)
    if local_size:
        return local_size >= world_size
    if environ.get("MASTER_ADDR"):
        return environ["MASTER_ADDR"] in _LOOPBACK
    return not any(name in environ for name in _RANKS)


def _present(names: tuple[str, ...], environ: Mapping[str, str]) -> list[str]:
    return [f"{name}={environ[name]}" for name in names if environ.get(name)]


def _derived_id(facts: list[str]) -> str:
    return _spell(int.from_bytes(hashlib.sha256("\n".join(facts).encode()).digest()[:5], "big"))


def _random_id() -> str:
    return _spell(secrets.randbits(40))


def _spell(number: int) -> str:
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(35, -1, -5))


def _started_at(pid: int) -> str:
    """When a process started, in a form that all who ask spell alike: psutil's seconds move with the clock, the kernel's ticks don't."""
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        )  # field 22: proc(5)
    except (OSError, IndexError):
        return ""


def _first_int(names: tuple[str, ...], environ: Mapping[str, str], default: int) -> int:
    for name in names:
        if environ.get(name, "").isdigit():
            return int(environ[name])
    return default
