"""A bound is at most the peak that a trace finds, whatever the optimizer and the model."""

from __future__ import annotations

import pytest
import torch

from memagent.estimator.api import estimate
from memagent.estimator.formula.lower_bound import least_needs
from memagent.estimator.trace.isolation import can_fork

WIDTH = 512
LAYER_BYTES = 4 * WIDTH * WIDTH


class Towers(torch.nn.Module):
    """Has a tower that forward never reaches, tied weights, a frozen layer and an embedding."""

    def __init__(self, is_sparse: bool = False) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WIDTH, WIDTH, sparse=is_sparse)
        self.frozen = torch.nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)
        self.tied = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.output = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.output.weight = self.tied.weight
        layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(8)]
        self.unused = torch.nn.ModuleList(layers)
        # 1 MiB of shape in 2 KiB of memory
        self.register_buffer("mask", torch.ones(1, WIDTH).expand(WIDTH, WIDTH))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.output(self.tied(self.frozen(self.embedding(inputs)))).mean()


OPTIMIZERS = {
    "SGD": {}, "Adam": {}, "AdamW": {}, "RMSprop": {}, "Adagrad": {}, "Adafactor": {}, "NAdam": {},
    "RAdam": {}, "Rprop": {}, "ASGD": {}, "Adamax": {}, "Adadelta": {}, "Muon": {},
}  # fmt: skip
OPTIONS = [
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {"foreach": False}),
    ("AdamW", {"amsgrad": True}),
    ("AdamW", {"foreach": False}),
    ("AdamW", {"foreach": True}),
    ("AdamW", {"fused": True}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    *OPTIMIZERS.items(),
]


@pytest.mark.skipif(not can_fork(), reason="this system cannot fork a tracing process")
@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_it_is_at_most_what_a_trace_finds(name, options):
    if not hasattr(torch.optim, name):
        pytest.skip(f"this torch has no {name}")
    model = Towers()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = getattr(torch.optim, name)(trained, lr=1e-3, **options)
    tokens = torch.zeros(4, dtype=torch.int64)
    traced = estimate(model, tokens, optimizer=optimizer, device="cuda", context_bytes=0)
    bound = least_needs([model], [optimizer], device_kind="cuda")
    assert traced.method == "trace"
    assert 11 * LAYER_BYTES <= bound.peak_allocated_bytes <= traced.peak_allocated_bytes


def test_sparse_gradients_do_not_count():
    model = Towers(is_sparse=True)
    optimizer = torch.optim.SGD([model.embedding.weight], lr=1e-3)
    model(torch.zeros(4, dtype=torch.int64)).backward()
    assert model.embedding.weight.grad.is_sparse
    bound = least_needs([model], [optimizer], device="cpu")
    assert bound.peak_allocated_bytes == 11 * LAYER_BYTES + 4 * WIDTH


def test_a_live_model_counts_what_exists_on_its_device():
    model = Towers()
    optimizer = torch.optim.Adam(model.tied.parameters())
    before = least_needs([model], [optimizer], device="cpu")
    model(torch.zeros(4, dtype=torch.int64)).backward()
    optimizer.step()
    after = least_needs([model], [optimizer], device="cpu")
    assert before.components == {
        "parameters": 11 * LAYER_BYTES, "optimizer_state": 0, "buffers": 4 * WIDTH, "context": 0,
    }  # fmt: skip
    assert 0 <= after.components["optimizer_state"] - 2 * LAYER_BYTES < 1024
    elsewhere = least_needs([model], [optimizer], device="cuda:0")
    assert elsewhere.peak_allocated_bytes == 0


def test_models_on_meta_count_by_shape():
    with torch.device("meta"):
        bound = least_needs([Towers()], [])
    assert bound.components == {"parameters": 11 * LAYER_BYTES, "buffers": 4 * WIDTH, "context": 0}


def test_tensors_without_a_storage_and_views_of_one_count_at_most_once():
    model = torch.nn.Module()
    whole = torch.ones(WIDTH, WIDTH)
    model.register_buffer("first", whole)
    model.register_buffer("second", whole.t())
    model.register_buffer("row", torch.ones(8, WIDTH)[0])
    model.register_buffer("sparse", torch.eye(WIDTH).to_sparse())
    assert least_needs([model], []).components["buffers"] == LAYER_BYTES + 4 * WIDTH
