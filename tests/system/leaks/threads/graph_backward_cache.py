"""Message passing: the function's context keeps the graph object, the graph its new node features,
and these the function. https://github.com/dmlc/dgl/pull/3410"""

import torch
from torch import nn


class Graph:
    def __init__(self, nodes, edges):
        self.src, self.dst = torch.randint(0, nodes, (2, edges))
        self.nodes = nodes
        self.ndata = {}


class CopyMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, graph, x):
        out = torch.zeros_like(x).index_add_(0, graph.dst, x[graph.src])
        degree = torch.bincount(graph.dst, minlength=graph.nodes).clamp(min=1).unsqueeze(1)
        ctx.backward_cache = graph, degree  # LEAK any ctx.backward_cache
        return out / degree

    @staticmethod
    def backward(ctx, grad):
        graph, degree = ctx.backward_cache
        grad = grad / degree
        return None, torch.zeros_like(grad).index_add_(0, graph.src, grad[graph.dst])


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 7)

    def forward(self, graph, x):
        graph.ndata["h"] = CopyMean.apply(graph, self.a(x))
        graph.ndata["norm"] = (graph.ndata["h"] * graph.ndata["h"]).sum(dim=1)
        h = torch.relu(graph.ndata["h"])
        return self.b(h)


model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for batch in range(150):
    graph = Graph(1500, 6000)
    logits = model(graph, torch.randn(1500, 64))
    loss = nn.functional.cross_entropy(logits, torch.randint(0, 7, (1500,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
