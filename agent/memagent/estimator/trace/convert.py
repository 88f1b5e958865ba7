"""Turns a model, its optimizer and its inputs into fake ones: same shapes, strides, dtypes and ties, no data.

1. It changes the objects it is given, so it runs in the tracer's own process only; the originals are kept alive
   there, so that no real device memory is ever freed by a process that must not talk to the device.
2. Tensors that shared a storage share one afterwards (tied weights, flattened parameters).
3. Parameters stay the same Python class of thing (`Parameter`), and the optimizer's groups are pointed at the new ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass, transform_subclass

from memagent.errors import TraceError

Spec = tuple[tuple[int, ...], str]
"""An input by shape and dtype name: `((8, 1024), "int64")`."""


class Converter:
    """Gives each tensor its fake counterpart on `device`, the same one each time it is asked."""

    def __init__(self, mode: FakeTensorMode, device: torch.device) -> None:
        self.mode, self.device = mode, device
        self._tensors: dict[int, torch.Tensor] = {}
        self._storages: dict[Any, torch.Tensor] = {}
        self.originals: list[Any] = []

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake counterpart of a tensor that is no parameter."""
        known = self._tensors.get(id(tensor))
        if known is None:
            known = self._tensors[id(tensor)] = self._fake(tensor)
            self.originals.append(tensor)
        return known

    def parameter(self, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        """The fake counterpart of a parameter, with what user code hung on it."""
        known = self._tensors.get(id(parameter))
        if known is None:
            fake = self._fake(parameter)
            known = torch.nn.Parameter(fake, requires_grad=parameter.requires_grad)
            for name, value in vars(parameter).items():
                if name not in ("fake_mode", "fake_device") and not isinstance(value, torch.Tensor):
                    setattr(known, name, value)
            hooks = getattr(parameter, "_post_accumulate_grad_hooks", None)
            for hook in hooks.values() if hooks else ():
                known.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            self._tensors[id(parameter)] = known
            self.originals.append(parameter)
        return known  # type: ignore[return-value]

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        if is_traceable_wrapper_subclass(tensor):
            return transform_subclass(
                tensor,
                lambda _, inner: self._fake(inner) if isinstance(inner, torch.Tensor) else inner,
            )
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, FakeTensor) and not _is_plain(
            tensor
        ):
            raise TraceError(
                f"can't trace tensors of type {type(tensor).__name__}; use the formula for this model"
            )
        if tensor.layout is not torch.strided:
            return self.mode.from_tensor(tensor)
        base = self._base(tensor)
        if (
            base.shape == tensor.shape
            and base.stride() == tensor.stride()
            and tensor.storage_offset() == 0
        ):
            return base
        return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _base(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake tensor that owns the storage of this one; made on first sight."""
        storage = tensor.untyped_storage()
        key = (storage._cdata, tensor.dtype)
        known = self._storages.get(key)
        if known is None:
            size = storage.nbytes()
            if size == tensor.numel() * tensor.element_size():
                known = torch.empty_strided(
                    tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.device
                )
            else:
                known = torch.empty(
                    size // tensor.element_size(), dtype=tensor.dtype, device=self.device
                )
            self._storages[key] = known
            self.originals.append(storage)
        return known


def convert_module(module: torch.nn.Module, converter: Converter) -> None:
    """Replace, in place, each parameter, buffer and plain tensor attribute of the module and its children."""
    for part in module.modules():
        part._parameters = {
            name: converter.parameter(value) if value is not None else None
            for name, value in part._parameters.items()
        }
        part._buffers = {
            name: converter.tensor(value) if value is not None else None
            for name, value in part._buffers.items()
        }
        for name, value in list(vars(part).items()):
            if isinstance(value, torch.nn.Parameter):
                vars(part)[name] = converter.parameter(value)
            elif isinstance(value, torch.Tensor):
                vars(part)[name] = converter.tensor(value)


def convert_optimizer(optimizer: torch.optim.Optimizer, converter: Converter) -> None:
    """Point the optimizer at the fake parameters and forget its state: the warm-up step creates it anew."""
    for group in optimizer.param_groups:
        group["params"] = [converter.parameter(parameter) for parameter in group["params"]]
    converter.originals.append(dict(optimizer.state))
    optimizer.state.clear()


def convert_value(value: Any, converter: Converter) -> Any:
    """Inputs of any nesting: tensors and `Spec`s become fake tensors on the device, everything else stays."""
    if isinstance(value, torch.Tensor):
        fake = _fresh(
            tuple(value.shape),
            value.dtype,
            converter.device,
            None if value.is_contiguous() else value.stride(),
        )
        return fake.requires_grad_(value.requires_grad)
    if is_spec(value):
        return _fresh(tuple(value[0]), dtype_named(value[1]), converter.device)
    if isinstance(value, Mapping):
        items = {name: convert_value(item, converter) for name, item in value.items()}
        return items if type(value) is dict else _rebuilt(value, items)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(convert_value(item, converter) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(convert_value(item, converter) for item in value)
    return value


def is_spec(value: Any) -> bool:
    """Whether this is `(shape, dtype name)`."""
    return (
        isinstance(value, (tuple, list))
        and len(value) == 2
        and isinstance(value[1], str)
        and isinstance(value[0], (tuple, list))
        and all(isinstance(size, int) for size in value[0])
    )


def dtype_named(name: str) -> torch.dtype:
    """The dtype of this name, "float32" or "torch.float32"."""
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise TraceError(f"no dtype is called {name!r}")
    return dtype


def _rebuilt(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the same class where it can be had (HF's BatchEncoding answers attributes, too), else a plain
    dict."""
    try:
        return type(value)(items)  # type: ignore[call-arg]
    except TypeError:
        return items


def _fresh(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    stride: tuple[int, ...] | None = None,
) -> torch.Tensor:
    if stride is None or 0 in stride:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


def _is_plain(tensor: torch.Tensor) -> bool:
    """A subclass that adds nothing to a tensor but its name (`torch.nn.Buffer`, a parameter class of the user's)."""
    return type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
