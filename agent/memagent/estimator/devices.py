"""GPU memory of a process besides tensors: the CUDA context and cuBLAS's workspaces. No torch.

cuBLAS: torch gives each pair of handle and stream a workspace, and autograd's thread has its own
handle: see `parseChosenWorkspaceSize` in CublasHandlePool.cpp (aten/src/ATen/cuda). Since torch 2.7
cuBLASLt shares it, unless TORCH_CUBLASLT_UNIFIED_WORKSPACE=0. Before, it took 1 MiB while a kernel
ran.

Context: the bytes that nvidia-smi shows for a process that has done one matrix product. It depends
on the driver, the build of torch, which of its kernels are loaded (CUDA_MODULE_LOADING), the
libraries in the process and the number of multiprocessors. Published measurements range from 300 to
1,340 MiB, and none says which GPU has which. So an unmeasured context is the middle of that range,
and the range its interval; a measured one (`Probe.context_bytes` at attach) has no interval.
"""

from __future__ import annotations

from dataclasses import dataclass

from memagent.errors import EstimateError
from memagent.units import GIB, MIB

CUBLAS_WORKSPACE_BYTES = 8_519_680
"""`:4096:2:16:8`, before Hopper: 2 x 4,096 KiB + 8 x 16 KiB."""
CUBLAS_WORKSPACE_HOPPER_BYTES = 32 * MIB
"""Compute capability 9.0 and later."""
CUBLAS_HANDLES = 2
"""The training thread's and autograd's."""
CONTEXT_RANGE_BYTES = (300 * MIB, 1340 * MIB)
CONTEXT_BYTES = sum(CONTEXT_RANGE_BYTES) // 2


@dataclass(frozen=True)
class Gpu:
    """A GPU's memory as sold, and its compute capability."""

    total_bytes: int
    capability: tuple[int, int]

    @property
    def cublas_bytes(self) -> int:
        """Return cuBLAS's workspace of one handle."""
        return cublas_workspace_bytes(self.capability)


@dataclass(frozen=True)
class ContextSize:
    """Memory of the process outside of the allocator, and its (low, high) if it wasn't measured."""

    size_bytes: int
    interval: tuple[int, int] | None = None


GPUS = {
    "t4": Gpu(15 * GIB, (7, 5)),
    "v100": Gpu(16 * GIB, (7, 0)),
    "v100-32gb": Gpu(32 * GIB, (7, 0)),
    "rtx3090": Gpu(24 * GIB, (8, 6)),
    "rtx4090": Gpu(24 * GIB, (8, 9)),
    "a10": Gpu(23 * GIB, (8, 6)),
    "l4": Gpu(23 * GIB, (8, 9)),
    "l40s": Gpu(45 * GIB, (8, 9)),
    "a100-40gb": Gpu(40 * GIB, (8, 0)),
    "a100": Gpu(80 * GIB, (8, 0)),
    "h100": Gpu(80 * GIB, (9, 0)),
    "h200": Gpu(141 * GIB, (9, 0)),
    "b200": Gpu(180 * GIB, (10, 0)),
}


def gpu_named(name: str) -> Gpu:
    """Return the GPU. Raises EstimateError that lists the known ones."""
    try:
        return GPUS[name.lower()]
    except KeyError:
        raise EstimateError(
            f"GPU {name!r} is not known: use one of {', '.join(GPUS)}, or give a limit in bytes"
        ) from None


def context_of(measured_bytes: int | None) -> ContextSize:
    """Return the measured context, or the middle of the usual range with that range."""
    if measured_bytes is None:
        return ContextSize(CONTEXT_BYTES, CONTEXT_RANGE_BYTES)
    return ContextSize(measured_bytes)


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
