"""Bytes of tensors: the whole storage that each keeps alive, each storage once, on the device where it lies."""

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
"""Methods that give a sparse tensor's own tensors, without a copy."""


class Ledger:
    """Remembers which storages were counted.

    A storage is known by its address, which is unique in a process: host memory and all CUDA devices share one address space, and
    what MPS gives as address is an object on the host. A storage without memory (meta and fake tensors, shards that FSDP freed by
    resizing them to nothing) has address 0 and counts nothing.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._seen: set[int] = set()
        self._address_of = getattr(torch._C, "_data_address", _address_of)

    def bytes_of(self, tensors: Iterable[Any]) -> dict[Any, int]:
        """Bytes by `torch.device` of those storages of `tensors` that were not counted before."""
        totals: dict[Any, int] = {}
        tensor_type, parameter_type = self._plain
        strided, address_of, seen = self._torch.strided, self._address_of, self._seen
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
            if address and address not in seen:
                seen.add(address)
                storage = tensor.untyped_storage()
                device = storage.device
                totals[device] = totals.get(device, 0) + storage.nbytes()
        return totals

    def _add_parts(self, tensor: Any, totals: dict[Any, int]) -> None:
        """Add what a tensor that is more than a view of one storage consists of."""
        for part in _parts(tensor, self._torch):
            if isinstance(part, self._plain[0]):
                for device, size in self._bytes_of_part(tensor, part).items():
                    totals[device] = totals.get(device, 0) + size

    def _bytes_of_part(self, whole: Any, part: Any) -> dict[Any, int]:
        if part is not whole:
            return self.bytes_of((part,))
        try:
            storage = part.untyped_storage()
            device, size = storage.device, storage.nbytes()
            address = (
                storage.data_ptr() if device.type != "meta" else 0
            )  # a fake tensor warns when asked
        except (
            RuntimeError,
            NotImplementedError,
            ValueError,
        ):  # no storage, or none that can be seen
            device, size, address = _opaque(part)
        if not address or address in self._seen:
            return {}
        self._seen.add(address)
        return {device: size}


def _address_of(tensor: Any) -> int:
    """For torch older than 2.1. Newer ones have a read-only way to ask, which leaves a copy-on-write storage uncopied."""
    return int(tensor.untyped_storage().data_ptr())


def _parts(tensor: Any, torch: Any) -> Iterator[Any]:
    """The tensors that `tensor` is made of: itself, where it has a storage of its own."""
    if hasattr(
        type(tensor), "__tensor_flatten__"
    ):  # DTensor, torchao, jagged: the protocol that torch.compile rests on
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


def _opaque(tensor: Any) -> tuple[Any, int, int]:
    """Device, bytes and an identity of a tensor whose memory is a library's own (oneDNN); 0 bytes for a wrapper without any."""
    if str(tensor.layout) == "torch._mkldnn":
        return tensor.device, int(tensor.numel() * tensor.element_size()), id(tensor)
    return tensor.device, 0, 0
