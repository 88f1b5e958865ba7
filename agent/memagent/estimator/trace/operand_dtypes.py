"""Products and convolutions take operands of one dtype, and norms don't mix float64 with others.

Fake tensors don't check it, kernels do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_OPERANDS = {
    "aten::addbmm": 3,
    "aten::addmm": 3,
    "aten::addmv": 3,
    "aten::baddbmm": 3,
    "aten::bmm": 2,
    "aten::convolution": 3,
    "aten::dot": 2,
    "aten::mm": 2,
    "aten::mv": 2,
}
"""The first arguments that need one dtype (at::native::cublasCommonArgs, `check_same_dtype`)."""

_OPERANDS_OF_NORMS = {
    "aten::cudnn_batch_norm": (0, 1, 2),
    "aten::native_batch_norm": (0, 1, 2),
    "aten::native_group_norm": (0, 1, 2),
    "aten::native_layer_norm": (0, 2, 3),
}
"""Input, weight and bias: either all or none are float64 (at::native::check_mixed_data_type). Some
kernels take 16-bit inputs with fp32 weights, so other mixtures pass."""
_NORMS_OF_ONE_DTYPE = ("aten::native_layer_norm", "aten::native_group_norm")
"""On CUDA these read weight and bias in the input's dtype (`const_data_ptr<T>` in
aten/native/cuda/layer_norm_kernel.cu and group_norm_kernel.cu)."""


class OperandError(RuntimeError):
    """The operands of a kernel have different `dtypes`."""

    def __init__(self, place: str, dtypes: list[Any]) -> None:
        names = " and ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        super().__init__(f"{place}: its operands are {names}, and need one dtype")
        self.dtypes = dtypes

    def is_of(self, model: Any) -> bool:
        """Return True if the model has parameters of all these dtypes: it mixes them itself."""
        return {parameter.dtype for parameter in model.parameters()} >= set(self.dtypes)


def check_operands(op: str, args: tuple[Any, ...], module_path: Callable[[], str]) -> None:
    """Raise OperandError if the kernel would refuse these arguments of the running module."""
    norm = _OPERANDS_OF_NORMS.get(op, ())
    operands = [args[place] for place in norm if place < len(args)] or args[: _OPERANDS.get(op, 0)]
    dtypes = list(dict.fromkeys(each.dtype for each in operands if each is not None))
    if len(dtypes) < 2:
        return
    # a host's kernels of norms take fp32 weights with 16-bit inputs
    is_strict = not norm or (op in _NORMS_OF_ONE_DTYPE and operands[0].device.type == "cuda")
    if is_strict or any(dtype.itemsize > 4 for dtype in dtypes):
        raise OperandError(f"{module_path()} ({op})".lstrip(), dtypes)
