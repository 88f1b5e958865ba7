"""Bytes by component, of real tensors: each storage counts once."""

from __future__ import annotations

import torch
from torch import nn

from memagent.components import Components, measure


def test_a_trained_model_is_counted_exactly():
    model = nn.Sequential(nn.Linear(10, 20), nn.BatchNorm1d(20))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(4, 10)).sum().backward()
    optimizer.step()
    parameters = 4 * (10 * 20 + 20 + 20 + 20)
    assert measure([model], [optimizer]) == Components(parameters, parameters, parameters, 4 * 20 * 2 + 8)


def test_tied_weights_and_views_count_once():
    embedding, head = nn.Embedding(100, 8), nn.Linear(8, 100, bias=False)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, head)
    model.register_buffer("upper_half", embedding.weight.detach()[:50])
    assert measure([model], []) == Components(100 * 8 * 4, 0, 0, 0)


def test_a_view_counts_the_storage_that_it_keeps_alive():
    model = nn.Module()
    model.register_buffer("tip", torch.zeros(1_000_000)[:1])
    assert measure([model], []).buffers_bytes == 4_000_000


def test_state_in_nested_containers_is_found():
    weight = nn.Parameter(torch.zeros(10))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.state[weight] = {"a": [torch.zeros(5), {"b": (torch.zeros(7, dtype=torch.uint8),)}], "step": 3}
    assert measure([], [optimizer]).optimizer_state_bytes == 20 + 7


def test_only_the_asked_device_counts():
    model = nn.Linear(4, 4)
    assert measure([model], [], device="cuda:0") == Components(0, 0, 0, 0)
    assert measure([model], [], device="cpu").parameters_bytes == 80


def test_lbfgs_history_is_state_too():
    weight = nn.Parameter(torch.ones(1000))
    optimizer = torch.optim.LBFGS([weight], max_iter=5)
    optimizer.step(lambda: (optimizer.zero_grad(), (loss := (weight**2).sum()).backward(), loss)[2])
    assert measure([], [optimizer]).optimizer_state_bytes >= 3 * 4000
