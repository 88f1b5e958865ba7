"""Train on networks that a service combines for a query, and keeps for the most frequent ones."""

import functools
import random

import torch
from torch import nn

GENES = 300


@functools.lru_cache(maxsize=256)
def combined_network(query: tuple) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(query))
    weights = torch.rand(len(query), generator=generator).softmax(0)
    rows = torch.rand(len(query), GENES, GENES // 2, generator=generator)
    return torch.einsum("q,qij->ij", weights, rows)


torch.manual_seed(0)
rng = random.Random(0)
model = nn.Sequential(nn.Linear(GENES // 2, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(700):
    query = tuple(sorted(int(rng.expovariate(0.004)) for _ in range(2)))
    network = combined_network(query)
    loss = ((model(network).squeeze(-1) - network.mean(1)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(float(loss.detach()), combined_network.cache_info().currsize)
