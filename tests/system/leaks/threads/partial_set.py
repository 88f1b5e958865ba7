"""Setting some rows of a node feature in place makes its graph longer each time.

As in https://github.com/dmlc/dgl/issues/698.
"""

import torch
from torch import nn


class NodeGraph:
    def __init__(self, count):
        self.count, self.frame = count, {}

    def set(self, key, value):
        assert len(value) == self.count
        self.frame[key] = value

    def apply_nodes(self, function, rows):
        for key, value in function(self.frame["x"][rows]).items():
            self.update_rows(key, rows, value)

    def update_rows(self, key, rows, value):
        column = self.frame[key]
        column[rows] = value  # LEAK any frame


graph = NodeGraph(400)
embedding = nn.Parameter(torch.randn(400, 32))
weight = nn.Parameter(torch.randn(32, 32) / 6)
graph.set("x", embedding)
graph.set("y", torch.zeros(400, 32))
optimizer = torch.optim.SGD([embedding, weight], lr=0.01)
for step in range(150):
    rows = torch.randint(0, 400, (100,))
    hidden = (embedding[rows] @ weight).tanh()
    loss = hidden.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    graph.apply_nodes(lambda x: {"y": (x @ weight).tanh()}, rows)
