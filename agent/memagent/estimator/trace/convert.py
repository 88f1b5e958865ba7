"""Convert a model, its optimizer and its inputs to fake tensors without data.

1. The conversion changes the objects in place, so it runs in the tracer's process only. It keeps
   the originals alive there: a process that must not talk to the device must not free its memory.
2. Tensors that shared a storage share one afterwards (tied weights, flattened parameters), and have
   the same shapes, strides and dtypes.
3. Parameters stay `Parameter`s, and the optimizer's groups refer to the new ones.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass, transform_subclass

from memagent.errors import TraceError

InputSpec = tuple[tuple[int, ...], str]
"""An input by shape and dtype name: `((8, 1024), "int64")`."""


_QUANTISATION = "quant_state"
"""bitsandbytes' attribute of a 4-bit weight that has its scales."""
_ROW_SCALES = ("CB", "SCB")
"""Its attributes of an 8-bit weight: the values, which are the weight's own, and their scales."""


class Converter:
    """Returns the fake counterpart of each tensor on `device`, always the same one."""

    def __init__(self, mode: FakeTensorMode, device: torch.device) -> None:
        self.mode = mode
        self.device = device
        self.originals: list[Any] = []
        self._tensors: dict[int, torch.Tensor] = {}
        self._storages: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the fake counterpart of a tensor that is not a parameter."""
        fake = self._tensors.get(id(tensor))
        if fake is None:
            fake = self._tensors[id(tensor)] = self._fake(tensor)
            self.originals.append(tensor)
        return fake

    def parameter(self, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        """Return the fake counterpart of a parameter, with its attributes and gradient hooks."""
        fake = self._tensors.get(id(parameter))
        if fake is None:
            data = self._fake(parameter)
            fake = torch.nn.Parameter(data, requires_grad=parameter.requires_grad)
            for name, value in vars(parameter).items():
                # a fake has its own mode and device; tensors among the attributes would stay real
                if name in _ROW_SCALES and isinstance(value, torch.Tensor):
                    setattr(fake, name, self.tensor(value))
                elif name not in ("fake_mode", "fake_device") and not isinstance(
                    value, torch.Tensor
                ):
                    is_holder = name == _QUANTISATION and value is not None
                    setattr(fake, name, self._holder(value) if is_holder else value)
            hooks = getattr(parameter, "_post_accumulate_grad_hooks", None)
            for hook in hooks.values() if hooks else ():
                fake.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            self._tensors[id(parameter)] = fake
            self.originals.append(parameter)
        return fake  # type: ignore[return-value]

    def _holder(self, value: Any) -> Any:
        """Return a copy of a quantised weight's scales and tables with fake tensors."""
        fake = copy.copy(value)
        for name, part in list(vars(value).items()):
            if isinstance(part, torch.Tensor):
                setattr(fake, name, self.tensor(part))
            elif type(part) is type(value):  # the scales' own
                setattr(fake, name, self._holder(part))
        return fake

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        if is_traceable_wrapper_subclass(tensor):
            return transform_subclass(
                tensor,
                lambda _, inner: self._fake(inner) if isinstance(inner, torch.Tensor) else inner,
            )
        is_standard = type(tensor) in (torch.Tensor, torch.nn.Parameter, FakeTensor)
        if not is_standard and not _is_plain_subclass(tensor):
            raise TraceError(
                f"can't trace tensors of type {type(tensor).__name__}; "
                "use the formula for this model"
            )
        if tensor.layout is not torch.strided:
            return self.mode.from_tensor(tensor)
        base = self._storage_owner(tensor)
        if (
            base.shape == tensor.shape
            and base.stride() == tensor.stride()
            and tensor.storage_offset() == 0
        ):
            return base
        return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _storage_owner(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the fake tensor with the counterpart of this tensor's storage."""
        storage = tensor.untyped_storage()
        # with the dtype, since one storage may be viewed as several
        key = (storage._cdata, tensor.dtype)
        owner = self._storages.get(key)
        if owner is None:
            size = storage.nbytes()
            if size == tensor.numel() * tensor.element_size():
                owner = torch.empty_strided(
                    tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.device
                )
            else:
                # a view of a larger storage: the owner has all of it
                length = size // tensor.element_size()
                owner = torch.empty(length, dtype=tensor.dtype, device=self.device)
            self._storages[key] = owner
            self.originals.append(storage)
        return owner


def quantisation_tensors(parameter: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the scales and tables of a quantised weight, which aren't parameters."""
    scales = getattr(parameter, "SCB", None)
    if isinstance(scales, torch.Tensor):
        yield scales
    holder = getattr(parameter, _QUANTISATION, None)
    while holder is not None:
        yield from (part for part in vars(holder).values() if isinstance(part, torch.Tensor))
        holder = getattr(holder, "state2", None)


def convert_module(module: torch.nn.Module, converter: Converter) -> None:
    """Replace each parameter, buffer and plain tensor attribute of a module and its children."""
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
    """Point the optimizer at the fake parameters and drop its state; the warm-up recreates it."""
    for group in optimizer.param_groups:
        group["params"] = [converter.parameter(parameter) for parameter in group["params"]]
    # kept: its tensors must not be freed in this process
    converter.originals.append(dict(optimizer.state))
    optimizer.state.clear()


def convert_value(value: Any, converter: Converter) -> Any:
    """Convert inputs of any nesting: tensors and `InputSpec`s become new fake tensors."""
    if isinstance(value, torch.Tensor):
        stride = None if value.is_contiguous() or 0 in value.stride() else value.stride()
        fake = _empty(tuple(value.shape), value.dtype, converter.device, stride)
        return fake.requires_grad_(value.requires_grad)
    if is_input_spec(value):
        return _empty(tuple(value[0]), parse_dtype(value[1]), converter.device)
    if isinstance(value, Mapping):
        items = {name: convert_value(item, converter) for name, item in value.items()}
        return items if type(value) is dict else _rebuild_mapping(value, items)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(convert_value(item, converter) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(convert_value(item, converter) for item in value)
    return value


def is_input_spec(value: Any) -> bool:
    """Return whether the value is `(shape, dtype name)`."""
    return (
        isinstance(value, (tuple, list))
        and len(value) == 2
        and isinstance(value[1], str)
        and isinstance(value[0], (tuple, list))
        and all(isinstance(size, int) for size in value[0])
    )


def parse_dtype(name: str) -> torch.dtype:
    """Return the dtype of a name such as "float32" or "torch.float32"."""
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise TraceError(f"torch has no dtype {name!r}")
    return dtype


def _rebuild_mapping(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """Return a mapping of the same class if possible, else a dict.

    The class matters for Hugging Face's BatchEncoding, which has attributes, too.
    """
    try:
        return type(value)(items)  # type: ignore[call-arg]
    except TypeError:
        return items


def _empty(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    stride: tuple[int, ...] | None = None,
) -> torch.Tensor:
    if stride is None:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


def _is_plain_subclass(tensor: torch.Tensor) -> bool:
    """Return whether a subclass changes no operator (`torch.nn.Buffer`, a user's parameter)."""
    return type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
