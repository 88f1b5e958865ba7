"""`memagent.estimate` on real models: what it answers, what it leaves alone, and what it says when it cannot."""

from __future__ import annotations

import sys

import pytest
import torch

import memagent
from memagent.errors import EstimateError, SettingError
from memagent.estimator.asking import estimate
from memagent.estimator.batches import batch_of, with_batch
from memagent.estimator.question import repeated_blocks
from memagent.estimator.trace.isolation import can_fork

pytestmark = pytest.mark.skipif(not can_fork(), reason="this system cannot fork a tracing process")
MIB = 2**20


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.down(torch.nn.functional.gelu(self.up(inputs)))


class Stack(torch.nn.Module):
    def __init__(self, depth: int = 6, width: int = 256) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        return inputs


def mean(output: torch.Tensor) -> torch.Tensor:
    return output.mean()


def test_components_are_exact_and_the_model_is_left_as_it_is():
    model = Stack()
    before = {name: (id(p), p.data_ptr(), type(p)) for name, p in model.named_parameters()}
    inputs = torch.randn(32, 256)
    state = torch.get_rng_state()
    found = estimate(model, inputs, loss=mean)
    parameters = sum(p.numel() * 4 for p in model.parameters())
    assert found.method == "trace"
    assert found.components["parameters"] == found.components["gradients"] == parameters
    assert 2 * parameters <= found.components["optimizer_state"] <= 2 * parameters + 4 * len(before)
    assert found.peak_allocated_bytes <= found.peak_reserved_bytes <= found.peak_device_bytes
    assert {name: (id(p), p.data_ptr(), type(p)) for name, p in model.named_parameters()} == before
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())


def test_a_model_of_seven_billion_parameters_needs_no_memory_to_be_estimated():
    found = estimate(
        lambda: torch.nn.Linear(86_000, 86_000, bias=False), ((4, 86_000), "float32"), loss=mean, optimizer="sgd"
    )
    assert found.components["parameters"] == 86_000**2 * 4


def test_foreach_temporaries_are_seen_and_a_fused_optimizer_has_none():
    parameters = sum(p.numel() * 4 for p in Stack().parameters())
    foreach = estimate(Stack, ((1, 256), "float32"), loss=mean)
    fused = estimate(Stack, ((1, 256), "float32"), loss=mean, optimizer=lambda p: torch.optim.AdamW(p, fused=True))
    assert 0.8 * parameters < foreach.phases["optimizer"] - fused.phases["optimizer"] < 1.3 * parameters


def test_checkpointing_and_autocast_change_what_is_kept():
    inputs = ((4096, 256), "float32")
    plain = estimate(Stack, inputs, loss=mean)
    checkpointed = estimate(Stack, inputs, loss=mean, checkpointing="full")
    half = estimate(Stack, inputs, loss=mean, autocast="bf16")
    assert checkpointed.peak_allocated_bytes < 0.6 * plain.peak_allocated_bytes
    assert half.peak_allocated_bytes < 0.8 * plain.peak_allocated_bytes
    assert (checkpointed.assumptions["checkpointing"], half.assumptions["autocast"]) == ("full", "bf16")


def test_on_a_host_the_peak_is_what_was_asked_for_and_nothing_is_reserved():
    found = estimate(Stack, ((32, 256), "float32"), loss=mean, device="cpu")
    assert found.peak_reserved_bytes is None and found.assumptions["traced_for"] == "cpu"


def test_a_limit_decides_and_the_allocator_gives_its_cache_back_before_it_gives_up():
    inputs = ((4096, 256), "float32")
    free = estimate(Stack, inputs, loss=mean, context_bytes=0)
    assert free.fits is None
    assert estimate(Stack, inputs, loss=mean, context_bytes=0, limit_bytes=2 * free.peak_reserved_bytes).fits is True
    tight = (free.peak_allocated_bytes + free.peak_reserved_bytes) // 2
    between = estimate(Stack, inputs, loss=mean, context_bytes=0, limit_bytes=tight)
    assert between.needed_bytes > tight or between.fits
    small = estimate(Stack, inputs, loss=mean, context_bytes=0, limit_bytes=free.peak_allocated_bytes // 2)
    assert small.fits is False and small.surely_too_large and small.verdict().startswith("will not fit: needs ")


def test_a_card_brings_its_memory_and_its_context():
    found = estimate(Stack, ((32, 256), "float32"), loss=mean, gpu="a100")
    assert found.limit_bytes == 80 * 2**30 and found.components["context"] > 100 * MIB
    assert found.peak_device_bytes == found.peak_reserved_bytes + found.components["context"] + found.terms["history"]


def test_what_cannot_be_traced_gets_the_formula_and_says_at_which_operator():
    class Asks(Stack):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs) * float(inputs.sum())

    found = estimate(Asks(), torch.randn(8, 256), loss=mean)
    assert found.method == "formula" and "aten::sum" in found.assumptions["trace"]
    assert found.components["parameters"] == sum(p.numel() * 4 for p in Stack().parameters())


def test_a_factory_in_a_file_is_estimated(tmp_path):
    path = tmp_path / "model.py"
    path.write_text("import torch\ndef make():\n    return torch.nn.Linear(512, 512)\n")
    found = estimate(f"{path}:make", ((8, 512), "float32"))
    assert found.components["parameters"] == (512 * 512 + 512) * 4
    assert found.assumptions["notes"] == ["no loss was given: the mean of the model's output stands for it"]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"device": "tpu"}, EstimateError, "tpu"),
        ({"gpu": "voodoo2"}, EstimateError, "voodoo2"),
        ({"limit_bytes": "much"}, SettingError, "much"),
        ({"optimizer": "adamm"}, EstimateError, "adamm"),
    ],
)
def test_bad_arguments_are_named(options, error, words):
    with pytest.raises(error, match=words):
        estimate(Stack, ((8, 256), "float32"), loss=mean, **options)


def test_it_is_public_and_costs_nothing_to_import():
    assert memagent.estimate is sys.modules["memagent.estimator.asking"].estimate


def test_inputs_of_another_batch_keep_their_nesting():
    tensor = torch.zeros(8, 3)
    given = {"ids": ((8, 16), "int64"), "more": (tensor, None), "flag": True, "table": ((5, 2), "float32")}
    assert with_batch(given, 4, instead_of=batch_of(given)) == {
        "ids": ((4, 16), "int64"), "more": (((4, 3), "float32"), None), "flag": True, "table": ((5, 2), "float32"),
    }  # fmt: skip
    with pytest.raises(EstimateError, match="no tensor"):
        batch_of({"flag": True})


def test_repeated_blocks_are_the_outermost_ones():
    model = Stack()
    assert repeated_blocks(model) == list(model.blocks)
    assert repeated_blocks(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))) == []
