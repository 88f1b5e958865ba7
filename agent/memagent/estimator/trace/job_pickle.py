"""A job as bytes, for a process that can't be forked: classes and functions by name, tensors by shape only.

What lives in `__main__` or in a function can't be named to another process: that is a TraceError which says so.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

from memagent.errors import TraceError

_bases: dict[tuple[int, torch.dtype], torch.Tensor] = {}


class _Packer(pickle.Pickler):
    def reducer_override(self, item: Any) -> Any:
        if type(item) in (torch.Tensor, torch.nn.Parameter):
            storage = item.untyped_storage()
            place = (storage._cdata, storage.nbytes(), item.dtype, tuple(item.shape), item.stride())
            return _on_meta, (
                *place,
                item.storage_offset(),
                item.requires_grad,
                isinstance(item, torch.nn.Parameter),
            )
        return NotImplemented


def packed(job: Any) -> bytes:
    """The job without any tensor's values. Raises TraceError for what has no name outside this process."""
    file = io.BytesIO()
    try:
        _Packer(file).dump(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TraceError(
            f"the model can't be sent to another process ({error}): name it as path.py:factory"
        ) from error
    if b"__main__" in file.getvalue():
        raise TraceError(
            "the model is defined in __main__, which another process can't import: name it as path.py:factory"
        )
    return file.getvalue()


def unpacked(body: bytes) -> Any:
    """The job again, its tensors on the meta device; those that shared a storage share one."""
    return pickle.loads(body)  # noqa: S301  # our own parent wrote it  # nosec B301


def _on_meta(
    storage: int,
    size_bytes: int,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    requires_grad: bool,
    is_parameter: bool,
) -> torch.Tensor:
    base = _bases.setdefault(
        (storage, dtype), torch.empty(size_bytes // dtype.itemsize, dtype=dtype, device="meta")
    )
    tensor = base.as_strided(shape, stride, offset)
    return (
        torch.nn.Parameter(tensor, requires_grad)
        if is_parameter
        else tensor.requires_grad_(requires_grad)
    )
