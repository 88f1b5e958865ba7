"""Bytes of tensors: each storage that they keep alive, in full and once, on its device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

_PARTS_BY_LAYOUT = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}
"""Methods that return the tensors inside a sparse tensor without a copy."""


class StorageSizes:
    """Sums storage sizes and counts each storage once over all calls.

    The address identifies a storage. It's unique in a process: host memory and all CUDA devices
    share one address space, and MPS reports the address of a host object. A storage without memory
    (meta and fake tensors, shards that FSDP resized to zero) has address 0 and doesn't count.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._tensor_type = torch.Tensor
        self._parameter_type = torch.nn.Parameter
        self._counted: set[int] = set()
        # The read-only getter of torch 2.1 and newer doesn't copy a copy-on-write storage.
        self._address_of = getattr(torch._C, "_data_address", _writable_address)

    def add(self, tensors: Iterable[Any]) -> dict[Any, int]:
        """Return the bytes by `torch.device` of those storages that were not yet counted."""
        totals: dict[Any, int] = {}
        # most tensors are on the device of the one before
        current, size = None, 0
        tensor_type, parameter_type = self._tensor_type, self._parameter_type
        strided, address_of, counted = self._torch.strided, self._address_of, self._counted
        for tensor in tensors:
            kind = type(tensor)
            if (
                kind is not tensor_type and kind is not parameter_type
            ) or tensor.layout is not strided:
                self._add_parts(tensor, totals)
                continue
            if tensor.is_quantized:
                self._add_parts(tensor, totals)
            address = address_of(tensor)
            if address and address not in counted:
                counted.add(address)
                storage = tensor.untyped_storage()
                device = storage.device
                if device != current:
                    _add(totals, current, size)
                    current, size = device, 0
                size += storage.nbytes()
        _add(totals, current, size)
        return totals

    def _add_parts(self, tensor: Any, totals: dict[Any, int]) -> None:
        """Add the parts of a tensor that is more than a view of one storage."""
        for part in _parts(tensor, self._torch):
            if not isinstance(part, self._tensor_type):
                continue
            sizes = self.add((part,)) if part is not tensor else self._size_of(part)
            for device, size in sizes.items():
                totals[device] = totals.get(device, 0) + size

    def _size_of(self, tensor: Any) -> dict[Any, int]:
        try:
            storage = tensor.untyped_storage()
            device, size = storage.device, storage.nbytes()
            # A fake tensor warns when its address is read.
            address = storage.data_ptr() if device.type != "meta" else 0
        except (RuntimeError, NotImplementedError, ValueError):  # no storage, or an opaque one
            device, size, address = _opaque_storage(tensor)
        if not address or address in self._counted:
            return {}
        self._counted.add(address)
        return {device: size}


def _add(totals: dict[Any, int], device: Any, size: int) -> None:
    if device is not None:
        totals[device] = totals.get(device, 0) + size


def _writable_address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _parts(tensor: Any, torch: Any) -> Iterator[Any]:
    """Yield the tensors inside a tensor, or the tensor if it has a storage."""
    # DTensor, torchao, jagged tensors: the protocol of torch.compile for wrapper subclasses.
    if hasattr(type(tensor), "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        yield from (getattr(tensor, name, None) for name in names)
    elif (methods := _PARTS_BY_LAYOUT.get(str(tensor.layout))) is not None:
        yield from (getattr(tensor, method)() for method in methods)
    elif type(tensor) is torch.Tensor and tensor.is_quantized:
        if tensor.qscheme() not in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            yield tensor.q_per_channel_scales()
            yield tensor.q_per_channel_zero_points()
    else:
        yield tensor


def _opaque_storage(tensor: Any) -> tuple[Any, int, int]:
    """Return device, bytes and id of a tensor whose memory belongs to a library (oneDNN).

    A wrapper without memory has 0 bytes and the id 0.
    """
    if str(tensor.layout) == "torch._mkldnn":
        return tensor.device, int(tensor.numel() * tensor.element_size()), id(tensor)
    return tensor.device, 0, 0
