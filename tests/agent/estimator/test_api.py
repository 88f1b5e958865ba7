"""`memagent.estimate` on real models: results, side effects and errors."""

from __future__ import annotations

import json
import sys
import warnings

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import memagent
from memagent.errors import EstimateError, SettingError, TraceError
from memagent.estimator import engine
from memagent.estimator.api import estimate
from memagent.estimator.cards import CARDS
from memagent.estimator.input_specs import batch_of, with_batch
from memagent.estimator.model_edits import CheckpointedModel, repeated_blocks
from memagent.estimator.request import TraceRequest
from memagent.estimator.search import largest_batch
from memagent.estimator.trace.isolation import can_fork

pytestmark = pytest.mark.skipif(not can_fork(), reason="this system cannot fork a tracing process")
MIB = 2**20


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

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


def test_it_counts_components_exactly_and_does_not_change_the_model():
    model = Stack()
    before = {name: (id(p), p.data_ptr(), type(p)) for name, p in model.named_parameters()}
    inputs = torch.randn(32, 256)
    state = torch.get_rng_state()
    result = estimate(model, inputs, loss=mean)
    parameters = sum(p.numel() * 4 for p in model.parameters())
    assert result.method == "trace"
    assert result.components["parameters"] == result.components["gradients"] == parameters
    assert (
        2 * parameters <= result.components["optimizer_state"] <= 2 * parameters + 4 * len(before)
    )
    assert result.peak_allocated_bytes <= result.peak_reserved_bytes <= result.peak_device_bytes
    assert {name: (id(p), p.data_ptr(), type(p)) for name, p in model.named_parameters()} == before
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())


def test_a_model_of_seven_billion_parameters_needs_no_memory_to_be_estimated():
    result = estimate(
        lambda: torch.nn.Linear(86_000, 86_000, bias=False),
        ((4, 86_000), "float32"),
        loss=mean,
        optimizer="sgd",
    )
    assert result.components["parameters"] == 86_000**2 * 4


def test_it_counts_foreach_temporaries_and_none_of_a_fused_optimizer():
    parameters = sum(p.numel() * 4 for p in Stack().parameters())
    foreach = estimate(Stack, ((1, 256), "float32"), loss=mean)
    fused = estimate(
        Stack,
        ((1, 256), "float32"),
        loss=mean,
        optimizer=lambda p: torch.optim.AdamW(p, fused=True),
    )
    assert (
        0.8 * parameters
        < foreach.phases["optimizer"] - fused.phases["optimizer"]
        < 1.3 * parameters
    )


def test_checkpointing_and_autocast_reduce_the_peak():
    inputs = ((4096, 256), "float32")
    plain = estimate(Stack, inputs, loss=mean)
    checkpointed = estimate(Stack, inputs, loss=mean, checkpointing="full")
    half = estimate(Stack, inputs, loss=mean, autocast="bf16")
    assert checkpointed.peak_allocated_bytes < 0.6 * plain.peak_allocated_bytes
    assert half.peak_allocated_bytes < 0.8 * plain.peak_allocated_bytes
    assert (checkpointed.assumptions["checkpointing"], half.assumptions["autocast"]) == (
        "full",
        "bf16",
    )


def test_a_host_has_no_reserved_level():
    result = estimate(Stack, ((32, 256), "float32"), loss=mean, device="cpu")
    assert result.peak_reserved_bytes is None and result.assumptions["traced_for"] == "cpu"


def test_the_allocator_releases_its_cache_before_it_fails():
    inputs = ((4096, 256), "float32")
    free = estimate(Stack, inputs, loss=mean, context_bytes=0)
    assert free.fits is None
    assert (
        estimate(
            Stack, inputs, loss=mean, context_bytes=0, limit_bytes=2 * free.peak_reserved_bytes
        ).fits
        is True
    )
    tight = (free.peak_allocated_bytes + free.peak_reserved_bytes) // 2
    between = estimate(Stack, inputs, loss=mean, context_bytes=0, limit_bytes=tight)
    assert between.needed_bytes > tight or between.fits
    small = estimate(
        Stack, inputs, loss=mean, context_bytes=0, limit_bytes=free.peak_allocated_bytes // 2
    )
    assert (
        small.fits is False
        and small.surely_too_large
        and small.verdict().startswith("won't fit: needs ")
    )


def test_a_gpu_sets_the_limit_and_the_context():
    result = estimate(Stack, ((32, 256), "float32"), loss=mean, gpu="a100")
    assert (
        result.limit_bytes == CARDS["a100"].total_bytes and result.components["context"] > 100 * MIB
    )
    assert (
        result.peak_device_bytes
        == result.peak_reserved_bytes + result.components["context"] + result.terms["history"]
    )
    assert result.terms["cublas_workspace"] == result.components["workspace"] > 0


class Scaled(torch.autograd.Function):
    """A function of the script's own that reads a value."""

    @staticmethod
    def forward(context, inputs):
        context.scale = inputs.abs().max().item()
        return inputs / context.scale

    @staticmethod
    def backward(context, gradient):
        return gradient / context.scale


def branches(inputs: torch.Tensor) -> torch.Tensor:
    return inputs * 2 if inputs.sum() > 0 else inputs


def multiplies_sparse(inputs: torch.Tensor) -> torch.Tensor:
    places = torch.randint(0, len(inputs), (2, 16))
    adjacency = torch.sparse_coo_tensor(places, torch.ones(16), (len(inputs), len(inputs)))
    return torch.sparse.mm(adjacency, inputs)


def asks_numpy(inputs: torch.Tensor) -> torch.Tensor:
    return inputs * float(np.median(inputs.detach().cpu().numpy()))


LIBRARY = torch.library.Library("memagent_test", "DEF")
LIBRARY.define("twice(Tensor inputs) -> Tensor")
LIBRARY.impl("twice", lambda inputs: inputs * 2, "CPU")


def fails(inputs: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("not today")


UNTRACEABLE = {
    "control flow": branches,
    "own autograd function": Scaled.apply,
    "sparse": multiplies_sparse,
    "numpy": asks_numpy,
    "operator without shapes": lambda inputs: torch.ops.memagent_test.twice(inputs),
    "exception": fails,
}


class Untraceable(Stack):
    def __init__(self, operation):
        super().__init__()
        self.operation = operation

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.operation(super().forward(inputs))


@pytest.mark.parametrize("name", UNTRACEABLE)
def test_an_untraceable_step_never_fits(name):
    result = estimate(
        Untraceable(UNTRACEABLE[name]), torch.randn(8, 256), loss=mean, limit_bytes="80GiB"
    )
    assert (result.method, result.outcome, result.fits) == ("bound", "unknown", None)
    assert result.fit_probability is None and not result.fits_with(2**40)
    assert result.assumptions["trace"].startswith("not traced at ")
    assert "unknown: needs at least" in result.verdict()
    assert result.to_dict()["verdict"] == "unknown"
    assert result.to_dict()["margin_bytes"] is None
    assert result.to_message(rank=0, device="cuda:0") is None


def test_an_untraceable_step_whose_parameters_alone_exceed_the_limit_will_not_fit():
    parameters = sum(p.numel() * 4 for p in Stack().parameters())
    limit = parameters - 1
    result = estimate(
        Untraceable(branches), torch.randn(8, 256), loss=mean, limit_bytes=limit, context_bytes=0
    )
    assert (result.outcome, result.fits, result.surely_too_large) == ("won't fit", False, True)
    assert result.needed_bytes == parameters > limit == result.limit_bytes


def test_the_largest_batch_of_an_untraceable_step_is_not_known():
    request = TraceRequest(
        Untraceable(branches), torch.randn(8, 256), loss=mean, limit_bytes=80 * 2**30
    )
    with pytest.raises(TraceError, match="the largest batch is not known: batch 1 is not traced"):
        largest_batch(request, engine.estimate)


def test_a_factory_in_a_file_is_estimated(tmp_path):
    path = tmp_path / "model.py"
    path.write_text("import torch\ndef make():\n    return torch.nn.Linear(512, 512)\n")
    result = estimate(f"{path}:make", ((8, 512), "float32"))
    assert result.components["parameters"] == (512 * 512 + 512) * 4
    assert result.assumptions["notes"] == [
        "without a loss, the trace takes the mean of the model's output"
    ]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"device": "tpu"}, EstimateError, "tpu"),
        ({"gpu": "voodoo2"}, EstimateError, "voodoo2"),
        ({"limit_bytes": "much"}, SettingError, "much"),
        ({"optimizer": "adamm"}, EstimateError, "adamm"),
        ({"optimizer": 3}, EstimateError, "optimizer is 3"),
        ({"optimizer": lambda parameters: 3}, EstimateError, "returns a int"),
        ({"loss": 3}, EstimateError, "loss is 3"),
        ({"autocast": "int4"}, EstimateError, "autocast is 'int4'"),
        ({"autocast": torch.float64}, EstimateError, "autocast is torch.float64"),
        ({"checkpointing": "sometimes"}, EstimateError, "checkpointing is 'sometimes'"),
        ({"accumulation": 0}, EstimateError, "accumulation is 0"),
    ],
)
def test_it_names_an_invalid_argument(options, error, words):
    with pytest.raises(error, match=words):
        estimate(Stack, ((8, 256), "float32"), **{"loss": mean, **options})


@pytest.mark.parametrize("inputs", [None, 3, {}, {"labels": None}, "ids"])
def test_it_names_inputs_without_a_tensor(inputs):
    with pytest.raises(EstimateError, match="holds no tensor"):
        estimate(Stack, inputs, loss=mean)


def test_it_names_an_optimizer_of_another_model():
    with pytest.raises(EstimateError, match="none of the model's parameters"):
        estimate(
            Stack(), ((8, 256), "float32"), optimizer=torch.optim.SGD(Stack().parameters(), lr=0.1)
        )


def test_it_accepts_torch_dtypes_and_booleans():
    def estimate_stack(**options):
        return estimate(Stack, ((64, 256), "float32"), loss=mean, **options)

    assert estimate_stack(autocast=torch.bfloat16, checkpointing=True) == estimate_stack(
        autocast="bf16", checkpointing="full"
    )
    assert estimate_stack(autocast="float16", checkpointing=False) == estimate_stack(
        autocast="fp16"
    )


def test_accumulate_is_an_alias_of_accumulation():
    def estimated(**options):
        return estimate(Stack, ((8, 256), "float32"), loss=mean, device="cpu", **options)

    assert estimated(accumulate=2) == estimated(accumulation=2)
    assert estimated(accumulate=2).assumptions["accumulation"] == 2


def test_the_dict_is_json_with_a_timeline():
    result = estimate(Stack, ((64, 256), "float32"), loss=mean, limit_bytes="24GiB", advice=True)
    content = json.loads(json.dumps(result.to_dict()))
    phases = ["data", "forward", "backward", "optimizer"]
    assert [moment["phase"] for moment in content["timeline"]] == [
        f"{name} of step {n}" for n in (0, 1) for name in phases
    ]
    assert (
        max(moment["peak_bytes"] for moment in content["timeline"]) == result.peak_allocated_bytes
    )
    assert (
        content["margin_bytes"] == result.margin_bytes
        and content["fits"] is True
        and content["advice"]
    )


def test_it_reports_how_attention_ran_and_if_the_model_recomputes():
    """The server names these where a run keeps more than was predicted."""

    class Attends(torch.nn.Module):
        def __init__(self, *, fused: bool, recomputes: bool) -> None:
            super().__init__()
            self.inner = Block(64)
            self.fused = fused
            self.recomputes = recomputes

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            if self.recomputes:
                inputs = checkpoint(self.inner, inputs, use_reentrant=False)
            if self.fused:
                return torch.nn.functional.scaled_dot_product_attention(inputs, inputs, inputs)
            return (inputs @ inputs.transpose(-1, -2)).softmax(-1) @ inputs

    def assumptions(**model):
        assumed = estimate(Attends(**model), ((2, 2, 128, 64), "float32"), loss=mean).assumptions
        return assumed["attention"], assumed["checkpointing"]

    assert assumptions(fused=True, recomputes=False) == ("sdpa", "none")
    assert assumptions(fused=False, recomputes=True) == ("eager", "by the model")
    assert "attention" not in estimate(Stack(), ((8, 256), "float32"), loss=mean).assumptions


def test_checkpointing_of_transformers_emits_no_warning():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        vocab_size=128,
    )
    model = transformers.LlamaForCausalLM(config)
    ids = ((8, 64), "int64")
    whole = estimate(model, {"input_ids": ids, "labels": ids})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recomputing = CheckpointedModel(model)()
    assert any(getattr(part, "gradient_checkpointing", False) for part in recomputing.modules())
    recomputed = estimate(
        transformers.LlamaForCausalLM(config),
        {"input_ids": ids, "labels": ids},
        checkpointing="full",
    )
    assert (
        recomputed.method == "trace"
        and recomputed.components["activations"] < whole.components["activations"]
    )


def test_it_is_public_and_costs_nothing_to_import():
    assert memagent.estimate is sys.modules["memagent.estimator.api"].estimate


def test_inputs_keep_their_nesting_with_another_batch():
    tensor = torch.zeros(8, 3)
    inputs = {
        "ids": ((8, 16), "int64"),
        "more": (tensor, None),
        "flag": True,
        "table": ((5, 2), "float32"),
    }
    assert with_batch(inputs, 4, instead_of=batch_of(inputs)) == {
        "ids": ((4, 16), "int64"),
        "more": (((4, 3), "float32"), None),
        "flag": True,
        "table": ((5, 2), "float32"),
    }
    with pytest.raises(EstimateError, match="no tensor"):
        batch_of({"flag": True})


def test_repeated_blocks_are_the_outermost_ones():
    model = Stack()
    assert repeated_blocks(model) == list(model.blocks)
    assert repeated_blocks(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))) == []
