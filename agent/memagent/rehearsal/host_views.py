"""CPU tensors over the bytes of the device's tensors.

The device's addresses are addresses of this process, so that a CPU operator can read and write
them. A page without a write reads as zeros.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import torch

_DONTNEED = 4
_CPU = torch.device("cpu")
_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)


def host_view(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor of the same bytes, sizes and strides. It owns nothing."""
    whole = tensor.untyped_storage()
    storage = torch._C._construct_storage_from_data_pointer(whole.data_ptr(), _CPU, whole.nbytes())
    empty = torch.empty(0, dtype=tensor.dtype, device=_CPU)
    return empty.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def fill_with_zeros(tensor: torch.Tensor) -> None:
    """Set the tensor's bytes to zero, and give whole pages back to the host."""
    start, size = tensor.data_ptr(), span_bytes(tensor)
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if not size:
        return
    if last <= first:
        _libc.memset(start, 0, size)
        return
    _libc.memset(start, 0, first - start)
    _libc.madvise(first, last - first, _DONTNEED)
    _libc.memset(last, 0, start + size - last)


def span_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes from the tensor's first to its last element."""
    if not tensor.numel():
        return 0
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True)
    )
    return int(last + 1) * tensor.element_size()


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an operator's arguments or results."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def replaced(value: Any, replace: Callable[[Any], Any]) -> Any:
    """Return `value` with `replace` applied to each leaf of its lists, tuples and dicts."""
    if isinstance(value, (list, tuple)):
        return type(value)([replaced(item, replace) for item in value])
    if isinstance(value, dict):
        return {key: replaced(item, replace) for key, item in value.items()}
    return replace(value)
