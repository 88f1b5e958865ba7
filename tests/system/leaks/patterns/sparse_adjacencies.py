"""Sparse adjacency matrices of all batches stay in a list."""

import torch
from torch import nn


class GraphLog:
    def __init__(self):
        self.adjacencies = []

    def add(self, adjacency):
        self.adjacencies.append(adjacency)  # LEAK any adjacencies


log = GraphLog()
linear = nn.Linear(16, 16)
optimizer = torch.optim.SGD(linear.parameters(), lr=0.01)
for step in range(140):
    edges = torch.randint(0, 1000, (2, 20_000))
    adjacency = torch.sparse_coo_tensor(edges, torch.ones(20_000), (1000, 1000))
    x = torch.randn(1000, 16)
    loss = (torch.sparse.mm(adjacency, linear(x)) / 20).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.add(adjacency)
