"""Blocks that run again change memory, and nothing else."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from memagent.fitting.blocks import ModelBlock
from memagent.fitting.recompute import recompute
from tests.agent.fitting.conftest import Residual, convnet, gradients_of, named_gradients

RUNS = [ModelBlock("", 0, 2), ModelBlock("", 6, 8)]


def saved_model(model: nn.Module) -> bytes:
    file = io.BytesIO()
    torch.save(model, file)
    return file.getvalue()


def count_forwards(module: nn.Module) -> list[int]:
    calls: list[int] = []
    module.register_forward_hook(lambda *_: calls.append(1))
    return calls


def test_gradients_are_equal(residual: Residual, rows: torch.Tensor) -> None:
    plain = gradients_of(residual, rows)
    recompute(residual, [ModelBlock("blocks.0"), ModelBlock("blocks.3")])
    torch.manual_seed(7)
    residual(rows).mean().backward()
    own = named_gradients(residual)
    assert own.keys() == plain.keys()
    assert all(torch.equal(own[name], plain[name]) for name in plain)


def test_chosen_blocks_run_again_and_others_do_not(residual: Residual, rows: torch.Tensor) -> None:
    undo = recompute(residual, [ModelBlock("blocks.1")])
    again = count_forwards(residual.blocks[1].up)
    once = count_forwards(residual.blocks[2].up)
    residual(rows).mean().backward()
    assert (len(again), len(once)) == (2, 1)
    undo()
    residual(rows).mean().backward()
    assert len(again) == 3


def test_dropout_draws_the_same_values(rows: torch.Tensor) -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.Linear(32, 1))
    model = nn.Sequential(block)
    plain = gradients_of(model, rows)
    recompute(model, [ModelBlock("0")])
    torch.manual_seed(7)
    model(rows).mean().backward()
    assert all(torch.equal(g, plain[name]) for name, g in named_gradients(model).items())


def test_running_statistics_are_updated_once(images: torch.Tensor) -> None:
    torch.manual_seed(0)
    model = convnet()
    other = copy.deepcopy(model)
    recompute(model, RUNS)
    for net in (model, other):
        net(images).mean().backward()
    buffers = dict(other.named_buffers())
    assert any(name.endswith("num_batches_tracked") for name in buffers)
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())
    assert model[1].momentum == 0.1


def test_evaluation_runs_once(residual: Residual, rows: torch.Tensor) -> None:
    recompute(residual.eval(), [ModelBlock("blocks.0")])
    calls = count_forwards(residual.blocks[0].up)
    residual(rows).mean().backward()
    assert len(calls) == 1


@pytest.mark.parametrize("kind", ["module", "runs"])
def test_nothing_of_it_is_saved_or_copied(residual: Residual, kind: str) -> None:
    model, blocks = (residual, [ModelBlock("blocks.0")]) if kind == "module" else (convnet(), RUNS)
    before = saved_model(model), repr(model), list(model.state_dict())
    recompute(model, blocks)
    assert (saved_model(model), repr(model), list(model.state_dict())) == before
    twin = copy.deepcopy(model)
    calls = count_forwards(next(m for m in twin.modules() if isinstance(m, (nn.Linear, nn.Conv2d))))
    values = torch.randn(2, 8) if kind == "module" else torch.randn(2, 3, 8, 8)
    twin(values).mean().backward()
    assert len(calls) == 1


def test_a_subclass_that_calls_its_base_runs_again_once(rows: torch.Tensor) -> None:
    class Base(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return self.inner(values).tanh()

    class Derived(Base):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return super().forward(values) + 1

    model = nn.Sequential(Base(), Derived())
    recompute(model, [ModelBlock("0"), ModelBlock("1")])
    calls = count_forwards(model[1].inner)
    model(rows).mean().backward()
    assert len(calls) == 2


def test_a_layer_of_transformers_fills_no_cache_twice() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 50}
    dropouts = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **dropouts)).train()
    tokens = torch.randint(0, 50, (2, 12))
    batch = {"input_ids": tokens, "labels": tokens}
    plain = gradients_of(model, batch)
    recompute(model, [ModelBlock("transformer.h.0"), ModelBlock("transformer.h.1")])
    model(**batch).loss.backward()
    own = named_gradients(model)
    assert all(torch.allclose(own[name], plain[name], rtol=1e-4, atol=1e-7) for name in plain)
