"""GPU memory of a process besides tensors: the CUDA context, cuBLAS's workspaces and NCCL's
buffers. No torch.

cuBLAS: torch gives each pair of handle and stream a workspace, and autograd's thread has its own
handle: see `parseChosenWorkspaceSize` in CublasHandlePool.cpp (aten/src/ATen/cuda). cuBLASLt, which
multiplies with a bias, shares it since torch 2.12. In 2.9 to 2.11 it has its own of 1 MiB, also for
each handle and stream (PR 156495 and 175879 of pytorch); before, 1 MiB while a kernel ran.

Context: what nvidia-smi shows for a process outside of torch's allocator. It depends on
multiprocessors, the libraries in the process, and on how kernels are loaded: drivers of CUDA 12.2
and later load them when needed; with older ones, a script that asks for GPUs before torch sets
CUDA_MODULE_LOADING gets all at once (pytorch/pytorch#86509: 274 and 636 MiB). Published
measurements range from 300 to 1,340 MiB. An unmeasured context is the middle of that range; a
measured one (`Probe.context_bytes` at attach) has no interval.

On an H200 (driver 580, torch 2.11) it was measured by step: 610 MiB after the first kernel, 66 more
for the handle of cuBLAS in forward's thread and 64 in backward's, 16 to 20 for flash attention and
cuDNN; 742 to 764 in 145 of 148 trainings, 1,250 with CUDA_MODULE_LOADING=EAGER. So on Hopper a
context measured at attach may lack two handles.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from memagent.units import MIB

CUBLAS_WORKSPACE_BYTES = 8_519_680
"""`:4096:2:16:8`, before Hopper: 2 x 4,096 KiB + 8 x 16 KiB."""
CUBLAS_WORKSPACE_HOPPER_BYTES = 32 * MIB
"""Compute capability 9.0 and later."""
CUBLASLT_WORKSPACE_BYTES = MIB
"""Without CUBLASLT_WORKSPACE_SIZE."""
_OWN_CUBLASLT_WORKSPACE = ((2, 9), (2, 12))
"""First version of torch in which cuBLASLt keeps a workspace, and first in which it shares one."""
CUBLAS_HANDLES = 2
"""The training thread's and autograd's."""
CONTEXT_RANGE_BYTES = (300 * MIB, 1340 * MIB)
CONTEXT_BYTES = sum(CONTEXT_RANGE_BYTES) // 2
CONTEXT_BYTES_MULTIPROCESSOR = (3 * MIB, 16 * MIB)
"""Context over multiprocessors, where these are known, if it widens the range.

Fitted to out-of-memory texts of 13 public projects, which have the memory of a process without
torch's: 14 of 15 medians by project and card are 3.5 to 15.2 MiB. The medians of 13 other projects
all lie within the range (300 to 1,340 MiB: 3 of 13), and 13 of 16 texts in issues on GitHub (9 of
16; benchmarks/estimator/truth/published_contexts.json)."""
HOPPER_CONTEXT_RANGE_BYTES = (610 * MIB, 1250 * MIB)
HOPPER_CONTEXT_BYTES = 760 * MIB
HOPPER_LIBRARIES_BYTES = 154 * MIB
"""Loaded after the first kernel: two handles of cuBLAS, flash attention, cuDNN."""
_HOPPER = (9, 0)

_NCCL_MIN_BYTES = 40 * MIB
_NCCL_ALONE_BYTES = 558 * MIB
_NCCL_PAIR_BYTES = 544 * MIB
_NCCL_BYTES = 688 * MIB
_NCCL_MAX_BYTES = 1600 * MIB
_NVLINK_SHARP_BYTES = 2304 * MIB


@dataclass(frozen=True)
class ContextSize:
    """Memory of the process outside of the allocator, and its (low, high) if it wasn't measured."""

    size_bytes: int
    interval: tuple[int, int] | None = None


def context_of(
    measured_bytes: int | None,
    capability: tuple[int, int] | None = None,
    multiprocessors: int | None = None,
) -> ContextSize:
    """Return the measured context, or the usual one with its range."""
    if measured_bytes is not None:
        return ContextSize(measured_bytes)
    size, (low, high) = CONTEXT_BYTES, CONTEXT_RANGE_BYTES
    if capability == _HOPPER:
        size, (low, high) = HOPPER_CONTEXT_BYTES, HOPPER_CONTEXT_RANGE_BYTES
    if multiprocessors:
        smallest, largest = (each * multiprocessors for each in CONTEXT_BYTES_MULTIPROCESSOR)
        low, high = min(low, smallest), max(high, largest)
    return ContextSize(size, (low, high))


def context_at_attach(
    measured_bytes: int | None, capability: tuple[int, int] | None
) -> ContextSize:
    """Return the context measured at attach, and on Hopper what may still be loaded."""
    if measured_bytes is None or capability != _HOPPER:
        return context_of(measured_bytes, capability)
    return ContextSize(measured_bytes, (measured_bytes, measured_bytes + HOPPER_LIBRARIES_BYTES))


def cublaslt_workspace_bytes(torch_version: str) -> int:
    """Return what cuBLASLt keeps for one handle and stream beside cuBLAS's workspace."""
    first, shared = _OWN_CUBLASLT_WORKSPACE
    match = re.match(r"(\d+)\.(\d+)", torch_version)
    is_own = match is not None and first <= (int(match[1]), int(match[2])) < shared
    return CUBLASLT_WORKSPACE_BYTES if is_own else 0


def cublas_workspace_bytes(capability: tuple[int, int] | None, setting: str | None = None) -> int:
    """Return the workspace of one handle and stream.

    `setting` is CUBLAS_WORKSPACE_CONFIG (":SIZE_KIB:COUNT" pairs), which overrides the GPU's
    default. An unknown GPU counts as one before Hopper.
    """
    sizes = [int(word) for word in (setting or "").split(":") if word.isdigit()]
    if len(sizes) >= 2 and len(sizes) % 2 == 0:
        return sum(size * count for size, count in zip(sizes[::2], sizes[1::2], strict=True)) << 10
    if capability is not None and capability[0] >= 9:
        return CUBLAS_WORKSPACE_HOPPER_BYTES
    return CUBLAS_WORKSPACE_BYTES


def nccl_buffers(ranks: int, capability: tuple[int, int] | None) -> tuple[int, int, int]:
    """Return the least, the usual and the most that one communicator of NCCL holds on a device.

    It is outside of torch's allocator. NCCL keeps a buffer for each channel and connection, of 4
    MiB for its protocol Simple (NCCL_BUFFSIZE; NCCL user guide, environment variables) and 10 MiB
    in all (NVIDIA/nccl#1685).

    - Usual: measured for each communicator on A100s with NVLink, 544 MiB for two ranks, 688 for
      more (NVIDIA/nccl#964); 558 for one alone on an H200 (docs/estimator-accuracy.md).
    - Least: a ring of two channels, as between cards without NVLink; none alone.
    - Most: 1.6 GB (NVIDIA/nccl#864). From Hopper on and with more than two ranks also the buffers
      of NVLink SHARP, 2,304 MiB for eight H200 (vllm-project/vllm#9699).

    No figure was fitted. All-to-all connects every pair of ranks, and takes more (nccl#1685: 3.3
    GB).
    """
    if ranks == 1:
        return 0, _NCCL_ALONE_BYTES, _NCCL_ALONE_BYTES
    usual = _NCCL_PAIR_BYTES if ranks == 2 else _NCCL_BYTES
    is_switched = ranks > 2 and capability is not None and capability >= _HOPPER
    most = _NCCL_MAX_BYTES + (_NVLINK_SHARP_BYTES if is_switched else 0)
    return _NCCL_MIN_BYTES, usual, most
