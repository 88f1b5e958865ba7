"""Scratch memory of CUDA's sums over rows, such as a bias's gradient. No torch.

Trace and formula share it: it is as large as the activations of a layer if few images are trained.
"""

from __future__ import annotations

import math

_MULTIPROCESSORS, _THREADS = 108, 2048
"""An A100's, and the threads that one of them holds."""


def outer_sum_bytes(rows: int, columns: int) -> int:
    """Return what a sum over rows allocates to add up parts of them, 0 if it makes no parts.

    64 MiB for 2,048 x 4,096. Source: `setReduceConfig` in aten/native/cuda/Reduce.cuh.
    """
    if rows < 1 or columns < 1:
        return 0
    vector = math.gcd(columns, 4)
    threads = 512 // vector
    across, down = (
        min(1 << max(1, size).bit_length() - 1, threads) for size in (columns // vector, rows)
    )
    height = min(down, threads // min(across, 32))
    width = min(across, threads // height)
    per_thread = -(-rows // height)
    grid = -(-(columns // vector) // width)
    target = _MULTIPROCESSORS * (_THREADS // (width * height))
    if per_thread < 256 or grid > target:
        return 0
    parts = max(min(-(-target // grid), -(-per_thread // 16)), -(-per_thread // 256))
    return 4 * (columns * parts * width * vector + grid) if parts > 1 else 0
