"""What a process holds on a GPU beside tensors, by generation: the CUDA context and cuBLAS' workspaces.

Sources: aten/src/ATen/cuda/CUDAContextLight.h and CublasHandlePool.cpp, `parseChosenWorkspaceSize` (4,096 x 2 + 16 x 8 KiB and up:
8,519,680 bytes before Hopper, 32 MiB on it), one workspace a handle and stream, and autograd's thread has a handle of its own. Contexts
are what nvidia-smi shows for a process that has done one matrix product; they differ by driver and build from 300 to 1,340 MiB, so the
agent measures its own and these stand in until it has.
"""

from __future__ import annotations

from dataclasses import dataclass

from memagent.errors import EstimateError
from memagent.units import GIB, MIB


@dataclass(frozen=True)
class Gpu:
    """`total_bytes` as sold; `context_bytes` and its range; cuBLAS workspace of one handle, in bytes."""

    total_bytes: int
    context_bytes: int
    cublas_bytes: int = 8_519_680
    context_low_bytes: int = 300 * MIB
    context_high_bytes: int = 1340 * MIB


_AMPERE = 480 * MIB
_HOPPER = 32 * MIB

GPUS = {
    "t4": Gpu(15 * GIB, 340 * MIB),
    "v100": Gpu(16 * GIB, 370 * MIB),
    "v100-32gb": Gpu(32 * GIB, 370 * MIB),
    "rtx3090": Gpu(24 * GIB, _AMPERE),
    "rtx4090": Gpu(24 * GIB, _AMPERE),
    "a10": Gpu(23 * GIB, _AMPERE),
    "l4": Gpu(23 * GIB, _AMPERE),
    "l40s": Gpu(45 * GIB, _AMPERE),
    "a100-40gb": Gpu(40 * GIB, _AMPERE),
    "a100": Gpu(80 * GIB, _AMPERE),
    "h100": Gpu(80 * GIB, 620 * MIB, _HOPPER),
    "h200": Gpu(141 * GIB, 620 * MIB, _HOPPER),
    "b200": Gpu(180 * GIB, 700 * MIB, _HOPPER),
}
HANDLES = 2
"""The training thread's and autograd's."""


def gpu_named(name: str) -> Gpu:
    """Raises EstimateError that lists the GPUs known."""
    try:
        return GPUS[name.lower()]
    except KeyError:
        raise EstimateError(
            f"GPU {name!r} is not known: use one of {', '.join(GPUS)}, or give a limit in bytes"
        ) from None
