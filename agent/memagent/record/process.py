"""The process: its command, its machine, its versions, and the variables that change how it behaves."""

from __future__ import annotations

import getpass
import os
import platform
import shlex
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from memagent import __version__
from memagent.record.git import DirtyCheck, describe_code, find_repository
from memagent.record.masking import masked_arguments, masked_text, masked_value

_VARIABLES = {
    "CONDA_DEFAULT_ENV", "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES", "FLUX_JOB_ID", "GLIBC_TUNABLES", "GROUP_RANK", "HIP_VISIBLE_DEVICES", "LD_PRELOAD", "LOCAL_RANK",
    "LOCAL_WORLD_SIZE", "LSB_JOBID", "MASTER_ADDR", "MASTER_PORT", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "PBS_JOBID", "RANK",
    "ROCR_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM", "VIRTUAL_ENV", "WORLD_SIZE", "ZE_AFFINITY_MASK",
}  # fmt: skip
_FAMILIES = (
    "ACCELERATE_", "FSDP_", "GLOO_", "MALLOC_", "NCCL_", "OMPI_COMM_WORLD_", "PMI_", "PYTORCH_", "RCCL_", "SLURM_ARRAY_", "SLURM_GPUS",
    "SLURM_JOB_", "SLURM_MEM", "SLURM_N", "SLURM_PROCID", "SLURM_RESTART_COUNT", "SLURM_STEP_", "TORCH_", "TORCHDYNAMO_", "TORCHELASTIC_",
    "TORCHINDUCTOR_",
)  # fmt: skip
_MOST_VARIABLES = 100
_LONGEST_TEXT = 1_000
_LONGEST_COMMAND = 4_000
_DRIVERS = ("/sys/module/nvidia/version", "/sys/module/amdgpu/version")
DIRTY_WAIT_S = 0.25


def user_name() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # containers without a passwd entry
        return None


def host_name() -> str:
    return socket.gethostname()


def describe_process(
    environ: Mapping[str, str] = os.environ, *, dirty: DirtyCheck | None = None
) -> dict[str, Any]:
    """Versions, command line, git state and the variables that matter; secrets masked.

    git is asked about changed files for at most `DIRTY_WAIT_S`; give `dirty`, begun before, to take the answer later.
    """
    tree = find_repository()
    own = DirtyCheck(tree) if dirty is None and tree is not None else None
    facts: dict[str, Any] = {
        "memagent": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": _cut(shlex.join(masked_arguments(sys.orig_argv)), _LONGEST_COMMAND),
        "directory": os.getcwd(),
        "cpus": os.cpu_count(),
        "variables": telling_variables(environ),
        **({"git_root": str(tree), **describe_code(tree)} if tree is not None else {}),
        **_versions(sys.modules.get("torch")),
    }
    if (check := dirty or own) is not None and (answer := check.answer(DIRTY_WAIT_S)) is not None:
        facts["git_dirty"] = answer
    if own is not None:
        own.close()
    return {name: value for name, value in facts.items() if value is not None}


def telling_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that change how training behaves, or where it runs."""
    names = sorted(name for name in environ if name in _VARIABLES or name.startswith(_FAMILIES))
    return {
        name: str(masked_value(name, _cut(masked_text(environ[name]), _LONGEST_TEXT)))
        for name in names[:_MOST_VARIABLES]
    }


def _versions(torch: Any) -> dict[str, Any]:
    """Of torch and what is below it. Asks for nothing that would initialise a device."""
    if torch is None:
        return {}
    facts: dict[str, Any] = {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "driver": next((text for path in _DRIVERS if (text := _file(path))), None),
    }
    if torch.version.cuda or facts["hip"]:
        facts["cudnn"] = _attempt(torch.backends.cudnn.version)
        facts["nccl"] = _attempt(lambda: ".".join(map(str, torch.cuda.nccl.version())))
        facts["gpus"] = _attempt(torch.cuda.device_count)
        if _attempt(torch.cuda.is_initialized):
            facts["gpu"] = _attempt(torch.cuda.get_device_name)
    return facts


def _attempt(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception:  # noqa: BLE001 - a library that is half there must not cost the rest of the record
        return None


def _file(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _cut(text: str, longest: int) -> str:
    return (
        text
        if len(text) <= longest
        else f"{text[:longest]}... ({len(text) - longest} characters more)"
    )
