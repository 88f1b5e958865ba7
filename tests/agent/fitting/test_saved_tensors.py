"""Saved tensors wait on the host, and gradients are as they were."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from memagent.fitting.changes import Changes
from memagent.fitting.pasted_code import code_of
from memagent.fitting.saved_tensors import keep_saved_on_host
from tests.agent.fitting.conftest import Residual, convnet, gradients_of, named_gradients


class Copies:
    """Counts the copies to the host by their bytes."""

    def __init__(self) -> None:
        self.sizes: list[int] = []


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[Copies]:
    counted, original = Copies(), torch.Tensor.to

    def to(tensor: torch.Tensor, target: object, *args: object, **kwargs: object) -> torch.Tensor:
        if target == "cpu":
            counted.sizes.append(tensor.nbytes)
        return original(tensor, target, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", to)
    yield counted


def test_gradients_are_the_same(residual: Residual, rows: torch.Tensor, copies: Copies) -> None:
    plain = gradients_of(residual, rows)
    undo = keep_saved_on_host(residual)
    residual(rows).mean().backward()
    undo()
    assert copies.sizes
    assert all(torch.equal(value, plain[n]) for n, value in named_gradients(residual).items())


def test_parameters_and_statistics_stay(images: torch.Tensor, copies: Copies) -> None:
    model = nn.Sequential(nn.Linear(8, 512, bias=False), nn.Linear(512, 8, bias=False))
    undo = keep_saved_on_host(model)
    model(torch.randn(2, 8)).mean().backward()
    undo()
    assert max(copies.sizes) == 2 * 512 * 4  # the weights have 16 KiB


def test_only_this_model_in_training_is_changed(
    residual: Residual, rows: torch.Tensor, copies: Copies
) -> None:
    undo = keep_saved_on_host(residual)
    copy.deepcopy(residual)(rows).mean().backward()
    with torch.no_grad():
        residual(rows)
    residual.eval()(rows)
    undo()
    residual.train()(rows).mean().backward()
    assert copies.sizes == []


def test_an_error_in_forward_leaves_no_hooks(residual: Residual, copies: Copies) -> None:
    undo = keep_saved_on_host(residual)
    with pytest.raises(RuntimeError):
        residual(torch.randn(2, 3))
    copies.sizes.clear()
    nn.functional.gelu(torch.randn(4, requires_grad=True)).sum().backward()
    undo()
    assert copies.sizes == []


def test_each_thread_has_its_own_calls(copies: Copies) -> None:
    """A second thread evaluates, and is inside the model while the first leaves it."""
    inside, has_left = threading.Event(), threading.Event()

    class Waits(nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            if threading.current_thread() is not threading.main_thread():
                inside.set()
                has_left.wait()
            else:
                second.start()
                inside.wait()
            return super().forward(rows).square()

    model = Waits(8, 8)
    undo = keep_saved_on_host(model)
    second = threading.Thread(target=torch.no_grad()(lambda: model(torch.ones(4, 8))))
    try:
        model(torch.ones(4, 8))
        copies.sizes.clear()
        nn.functional.gelu(torch.ones(4, requires_grad=True)).sum().backward()
        assert copies.sizes == []  # the first thread's hooks are gone
    finally:
        has_left.set()
        second.join()
        undo()


def test_a_saved_model_has_nothing_of_it(residual: Residual) -> None:
    def pickled() -> int:
        content = io.BytesIO()
        torch.save(residual, content)
        return len(content.getvalue())

    before = pickled()
    undo = keep_saved_on_host(residual)
    after = pickled()
    undo()
    assert after == before


def test_the_code_gives_the_same_gradients(images: torch.Tensor) -> None:
    torch.manual_seed(0)
    model = convnet()
    plain = gradients_of(model, images)
    code = code_of(Changes(saved_on_host=True), model, is_transformers=False)
    names = {"model": model, "torch": torch, "inputs": images, "targets": None}
    names["loss_of"] = lambda output, _: output.mean()
    exec(code, names)
    names["loss"].backward()
    assert all(torch.equal(value, plain[n]) for n, value in named_gradients(model).items())
