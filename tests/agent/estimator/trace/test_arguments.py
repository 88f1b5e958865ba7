"""Arguments that a model doesn't take are refused by name; other failures are the trace's."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import memagent
from memagent.cli import main
from memagent.errors import EstimateError, OptionError, TraceError
from memagent.estimator.trace.arguments import argument_error
from memagent.estimator.trace.tracing import record_trace

VALUES = ((4, 8), "float32")
LIBRARY = torch.library.Library("test_arguments", "DEF")
LIBRARY.define("on_cpu(Tensor values) -> Tensor")
LIBRARY.impl("on_cpu", lambda values: values.clone(), "CPU")


@torch.library.custom_op("test_arguments::without_fake", mutates_args=())
def without_fake(values: torch.Tensor) -> torch.Tensor:
    return values.clone()


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, values: Any = None, mask: Any = None, **others: Any) -> torch.Tensor:
        if values is None:
            raise ValueError("no values")
        output: torch.Tensor = self.layer(values)
        return output if mask is None else output * mask


class Wrapper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Masked()

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self.inner(*arguments, **named)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (
            {"valeus": VALUES},
            r"valeus isn't an argument of Masked.forward \(did you mean values\?\)",
        ),
        ((VALUES, VALUES, VALUES), "and Masked.forward differ, too many positional arguments"),
    ],
)
def test_an_argument_that_forward_does_not_take_is_named(inputs: Any, words: str) -> None:
    with pytest.raises(OptionError, match=f"^inputs {words}.*mask$"):
        memagent.estimate(Masked, inputs, loss=None)


def test_a_name_of_kwargs_beside_a_like_one_is_noted_if_there_is_no_loss() -> None:
    class Masks(Masked):
        def forward(self, values: Any = None, mask: Any = None, **others: Any) -> torch.Tensor:
            return super().forward(values, mask) * others["masks"]

    inputs = {"values": VALUES, "masks": VALUES}
    note = "masks isn't a named argument of Masks.forward (did you mean mask?)"
    assert note in record_trace(Masks(), inputs).notes
    assert note not in record_trace(Masks(), inputs, loss=lambda output: output.sum()).notes


def test_a_missing_argument_is_named() -> None:
    error = argument_error(nn.Bilinear(8, 8, 8), {"input1": VALUES})
    assert error is not None and "missing a required argument: 'input2'" in str(error)


def test_a_pair_in_place_of_a_tensor_is_one_argument() -> None:
    assert argument_error(nn.Linear(8, 8), VALUES) is None


def test_an_optimizers_failure_is_not_the_inputs() -> None:
    with pytest.raises(TraceError, match="'int' object has no attribute"):
        record_trace(Masked(), {"values": VALUES, "temperature": VALUES}, optimizer=lambda _: 3)


def test_a_name_that_is_near_none_is_a_keyword_of_its_own() -> None:
    assert record_trace(Masked(), {"values": VALUES, "temperature": VALUES}).events


def test_a_wrapper_without_names_of_its_own_says_nothing() -> None:
    assert argument_error(Wrapper(), {"anything": VALUES}) is None
    assert record_trace(Wrapper(), {"values": VALUES}).events


@pytest.mark.parametrize(
    ("model", "inputs", "words"),
    [
        (Masked, {"values": ((4, 9), "float32")}, "at torch.nn.* got .4, 9. X .8, 8."),
        (lambda: nn.Conv2d(3, 8, 3), ((4, 1, 9, 9), "float32"), "to have 3 channels"),
        (lambda: nn.Embedding(9, 8), ((4, 8), "float32"), "Long, Int; but got torch.float32"),
        (lambda: nn.LSTM(8, 8), ((4, 3, 7), "float32"), "Expected 8, got 7"),
        (lambda: nn.BatchNorm1d(8), ((4, 8, 2, 2), "float32"), "expected 2D or 3D input"),
        (lambda: nn.Flatten(3), VALUES, "at torch.Tensor.flatten: Dimension out of range"),
    ],
)
def test_inputs_whose_shapes_or_dtypes_do_not_fit_get_no_number(
    model: Any, inputs: Any, words: str
) -> None:
    name = type(model()).__name__
    with pytest.raises(OptionError, match=f"^inputs and {name} don't fit.*{words}"):
        memagent.estimate(model, inputs, loss=None)


class Own(nn.Module):
    """A layer, and code or an operator of its own after it."""

    def __init__(self, own: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.own = own

    def forward(self, values: torch.Tensor) -> Any:
        return self.own(self.layer(values))


def raise_error(_: torch.Tensor) -> None:
    raise RuntimeError("run setup() first")


@pytest.mark.parametrize(
    "own",
    [
        without_fake,
        lambda values: torch.ops.test_arguments.on_cpu(values),
        lambda values: values * float(values.detach().numpy().max()),
        lambda _: importlib.import_module("no_such_kernels"),
        lambda values: values.no_such_attribute,
        raise_error,
    ],
    ids=["no fake", "no meta kernel", "numpy", "import", "attribute", "own check"],
)
def test_a_failure_of_the_models_own_gets_a_bound(own: Callable[[torch.Tensor], Any]) -> None:
    found = memagent.estimate(lambda: Own(own), VALUES, loss=None, limit_bytes="2GiB")
    assert (found.method, found.outcome) == ("bound", "unknown")
    assert found.assumptions["trace"].startswith("not traced")


def test_a_live_model_of_other_shapes_gets_no_number_either() -> None:
    with pytest.raises(OptionError, match="don't fit"):
        memagent.estimate(Masked(), {"values": torch.zeros(4, 9)}, loss=None)


def test_a_failure_of_another_kind_is_the_traces() -> None:
    class Reading(Masked):
        def forward(self, values: Any = None, *_: Any, **__: Any) -> torch.Tensor:
            if values.sum().item() > 0:
                raise ValueError("no values")
            return super().forward(values)

    with pytest.raises(TraceError, match="which a trace does not have"):
        record_trace(Reading(), {"values": VALUES})


def test_lazy_layers_without_shapes_get_no_number() -> None:
    with pytest.raises(EstimateError, match="lazy layers"):
        memagent.estimate(lambda: nn.Sequential(nn.LazyLinear(8)), VALUES, loss=None)


def test_the_command_line_spells_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def forward(self, input, **rest):\n        return super().forward(input)\n"
        "def net():\n    return Net(8, 8)\n"
    )
    status = main(["estimate", "--model", f"{tmp_path}/net.py:net", "--input", "inptu=4x8"])
    printed = capsys.readouterr()
    assert (status, printed.out) == (2, "")
    expected = (
        "memagent: --input inptu isn't an argument of Net.forward (did you mean input?): use input"
    )
    assert printed.err == f"{expected}\n"
