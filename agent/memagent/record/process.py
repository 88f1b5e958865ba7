"""The process: its command, its machine, its versions, and the variables that affect training."""

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
from memagent.record.git import ChangeCheck, describe_code, find_repository
from memagent.record.masking import mask_arguments, mask_text, mask_value

_RELEVANT_VARIABLES = {
    *("CONDA_DEFAULT_ENV", "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING"),
    *("CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    *("ZE_AFFINITY_MASK", "FLUX_JOB_ID", "LSB_JOBID", "PBS_JOBID", "GLIBC_TUNABLES", "LD_PRELOAD"),
    *("MASTER_ADDR", "MASTER_PORT", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VIRTUAL_ENV"),
    *("TOKENIZERS_PARALLELISM", "RANK", "GROUP_RANK", "LOCAL_RANK", "WORLD_SIZE"),
    "LOCAL_WORLD_SIZE",
}
_RELEVANT_PREFIXES = (
    *("ACCELERATE_", "FSDP_", "GLOO_", "MALLOC_", "NCCL_", "OMPI_COMM_WORLD_", "PMI_", "PYTORCH_"),
    *("RCCL_", "TORCH_", "TORCHDYNAMO_", "TORCHELASTIC_", "TORCHINDUCTOR_"),
    *("SLURM_ARRAY_", "SLURM_GPUS", "SLURM_JOB_", "SLURM_MEM", "SLURM_N", "SLURM_PROCID"),
    *("SLURM_RESTART_COUNT", "SLURM_STEP_"),
)
_MAX_VARIABLES = 100
_MAX_VARIABLE_CHARACTERS = 1_000
_MAX_COMMAND_CHARACTERS = 4_000
_MAX_NAME_CHARACTERS = 253
"""Of names in Kubernetes."""
_NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_DRIVER_FILES = ("/sys/module/nvidia/version", "/sys/module/amdgpu/version")
GIT_TIMEOUT_S = 0.25


def user_name() -> str | None:
    """Return the user's name; None in containers without a passwd entry."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return None


def host_name() -> str:
    """Return the name of this machine."""
    return socket.gethostname()


def describe_process(
    environ: Mapping[str, str] = os.environ, *, changes: ChangeCheck | None = None
) -> dict[str, Any]:
    """Return versions, command line, git state and relevant variables, with secrets masked.

    `changes` is a check that the caller has started.
    """
    tree = find_repository()
    if changes is None and tree is not None:
        changes = ChangeCheck(tree)
    facts: dict[str, Any] = {
        "memagent": __version__,
        "python": platform.python_version(),
        "platform": _platform(),
        "command": _shorten(shlex.join(mask_arguments(sys.orig_argv)), _MAX_COMMAND_CHARACTERS),
        "directory": os.getcwd(),
        "cpus": os.cpu_count(),
        "variables": relevant_variables(environ),
        **describe_job(environ),
        **({"git_root": str(tree), **describe_code(tree)} if tree is not None else {}),
        **_versions(sys.modules.get("torch")),
        "git_dirty": changes.result(GIT_TIMEOUT_S) if changes is not None else None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def describe_job(environ: Mapping[str, str]) -> dict[str, str]:
    """Return where a scheduler runs this process: pod, namespace and node, or Slurm's job and node.

    Kubernetes tells a container the name of its pod, as its host's, and the namespace. It tells the
    node, and both others, by variables that the pod's spec fills from `fieldRef`.
    """
    is_pod = "KUBERNETES_SERVICE_HOST" in environ
    facts = {
        "pod": environ.get("POD_NAME") or (host_name() if is_pod else ""),
        "namespace": environ.get("POD_NAMESPACE") or (_read(_NAMESPACE_FILE) if is_pod else ""),
        "node": environ.get("NODE_NAME") or environ.get("SLURMD_NODENAME", ""),
        "slurm_job_id": environ.get("SLURM_JOB_ID", ""),
    }
    return {name: _shorten(text, _MAX_NAME_CHARACTERS) for name, text in facts.items() if text}


def relevant_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that affect how or where training runs, masked."""
    names = sorted(
        name
        for name in environ
        if name in _RELEVANT_VARIABLES or name.startswith(_RELEVANT_PREFIXES)
    )
    variables = {}
    for name in names[:_MAX_VARIABLES]:
        text = _shorten(mask_text(environ[name]), _MAX_VARIABLE_CHARACTERS)
        variables[name] = str(mask_value(name, text))
    return variables


def _platform() -> str:
    """Return `platform.platform()`, on Linux without running `uname` for the processor's name."""
    if sys.platform != "linux":
        return platform.platform()
    system = os.uname()
    libc = "".join(platform.libc_ver())
    parts = (system.sysname, system.release, system.machine, libc and f"with-{libc}")
    return "-".join(filter(None, parts))


def _versions(torch: Any) -> dict[str, Any]:
    """Return the versions of torch and its libraries without initializing a device."""
    if torch is None:
        return {}
    facts: dict[str, Any] = {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "driver": next((text for path in _DRIVER_FILES if (text := _read(path))), None),
    }
    # Each of these may create a CUDA context, after which the process can't fork safely: they are
    # read only where the script has created one.
    if _call_safely(torch.cuda.is_initialized):
        facts["cudnn"] = _call_safely(torch.backends.cudnn.version)
        facts["nccl"] = _call_safely(lambda: ".".join(map(str, torch.cuda.nccl.version())))
        facts["gpus"] = _call_safely(torch.cuda.device_count)
        facts["gpu"] = _call_safely(torch.cuda.get_device_name)
    return facts


def _call_safely(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception:  # noqa: BLE001 - one broken library must not cost the other facts
        return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _shorten(text: str, limit: int) -> str:
    rest = len(text) - limit
    return text if rest <= 0 else f"{text[:limit]}... ({rest} characters more)"
