"""Kernels refuse operands of different dtypes, and so does a trace."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memagent
from memagent.errors import OptionError


class Inner(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8, bias=False, dtype=dtype)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(values))


MODELS = {
    "addmm": lambda: nn.Linear(8, 8),
    "mm": lambda: nn.Linear(8, 8, bias=False),
    "convolution": lambda: nn.ConvTranspose1d(8, 8, 1),
    "bmm": lambda: Product(),
}


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, 8))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.bmm(values, self.weight)


def rows(dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(8, 8, 8, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64])
@pytest.mark.parametrize("op", MODELS)
def test_inputs_of_another_dtype_are_refused(op: str, dtype: torch.dtype) -> None:
    model = MODELS[op]()
    with pytest.raises(RuntimeError):
        model(rows(dtype))
    with pytest.raises(OptionError, match=f"inputs and .*aten::{op}.*: its operands are "):
        memagent.estimate(model, rows(dtype), gpu="a100")


NORMS = {
    "native_layer_norm": lambda: nn.LayerNorm(8),
    "native_group_norm": lambda: nn.GroupNorm(2, 8),
    "native_batch_norm": lambda: nn.BatchNorm1d(8),
}


@pytest.mark.parametrize("op", NORMS)
def test_a_norm_refuses_float64_and_takes_16_bits_on_a_host(op: str) -> None:
    model = NORMS[op]()
    with pytest.raises(RuntimeError):
        model(rows(torch.float64))
    with pytest.raises(OptionError, match=f"inputs and .*aten::{op}.*: its operands are float64"):
        memagent.estimate(model, rows(torch.float64), gpu="a100")
    model(rows(torch.bfloat16))
    assert memagent.estimate(model, rows(torch.bfloat16), device="cpu").method == "trace"


@pytest.mark.parametrize("op", ["native_layer_norm", "native_group_norm"])
def test_on_cuda_a_norm_reads_its_weights_in_the_inputs_dtype(op: str) -> None:
    with pytest.raises(OptionError, match=f"aten::{op}.*: its operands are bfloat16 and float32"):
        memagent.estimate(NORMS[op](), rows(torch.bfloat16), gpu="a100")
    narrow = NORMS[op]().to(torch.bfloat16)
    assert memagent.estimate(narrow, rows(torch.bfloat16), gpu="a100").method == "trace"
    mixed = memagent.estimate(NORMS[op](), rows(torch.bfloat16), autocast="bf16", gpu="a100")
    assert mixed.method == "trace"


def test_on_cuda_batch_norm_takes_16_bits() -> None:
    result = memagent.estimate(NORMS["native_batch_norm"](), rows(torch.bfloat16), gpu="a100")
    assert result.method == "trace"


def test_a_model_that_mixes_dtypes_is_to_blame_and_its_module_is_named() -> None:
    text = "^model fails in its forward at second \\(aten::mm\\): its operands are"
    with pytest.raises(OptionError, match=text):
        memagent.estimate(Inner(torch.bfloat16), rows(torch.float32), gpu="a100")


def test_the_module_is_named_where_inputs_do_not_fit() -> None:
    with pytest.raises(OptionError, match="don't fit at first \\(aten::addmm\\): its operands are"):
        memagent.estimate(Inner(torch.float32), rows(torch.bfloat16), gpu="a100")


@pytest.mark.parametrize("op", MODELS)
def test_autocast_gives_operands_one_dtype(op: str) -> None:
    result = memagent.estimate(MODELS[op](), rows(torch.bfloat16), autocast="bf16", gpu="a100")
    assert result.method == "trace"
    assert result.outcome == "fits"
