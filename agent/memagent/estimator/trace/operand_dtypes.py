"""Products and convolutions take operands of one dtype: fake tensors don't check it, kernels do."""

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
    operands = [each for each in args[: _OPERANDS.get(op, 0)] if each is not None]
    dtypes = list(dict.fromkeys(each.dtype for each in operands))
    if len(dtypes) > 1:
        raise OperandError(f"{module_path()} ({op})".lstrip(), dtypes)
