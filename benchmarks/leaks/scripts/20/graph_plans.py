"""Classify nodes of sampled graphs; the plan of a graph's messages lives as long as the graph."""

import weakref

import torch
from torch import nn


class Graph:
    def __init__(self, nodes: int, degree: int) -> None:
        self.features = torch.randn(nodes, 24)
        self.sources = torch.randint(nodes, (nodes * degree,))
        self.targets = torch.arange(nodes).repeat_interleave(degree)

    @property
    def nodes(self) -> int:
        return len(self.features)


class MessagePlan:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        degrees = torch.bincount(graph.sources, minlength=graph.nodes).clamp(min=1).float()
        self.weights = (degrees[graph.sources] * degrees[graph.targets]).rsqrt()[:, None]

    def spread(self, rows: torch.Tensor) -> torch.Tensor:
        messages = rows[self.graph.sources] * self.weights
        return torch.zeros_like(rows).index_add(0, self.graph.targets, messages)


class Planner:
    def __init__(self) -> None:
        self._plans = weakref.WeakKeyDictionary()

    def plan(self, graph: Graph) -> MessagePlan:
        try:
            return self._plans[graph]
        except KeyError:
            plan = MessagePlan(graph)
            self._plans[graph] = plan
            return plan


class Layer(nn.Module):
    def __init__(self, inputs: int, outputs: int, planner: Planner) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.planner = planner

    def forward(self, graph: Graph, rows: torch.Tensor) -> torch.Tensor:
        return self.linear(rows + self.planner.plan(graph).spread(rows))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        planner = Planner()
        self.layers = nn.ModuleList(
            Layer(inputs, outputs, planner) for inputs, outputs in ((24, 48), (48, 48), (48, 4))
        )

    def forward(self, graph: Graph) -> torch.Tensor:
        rows = graph.features
        for layer in self.layers[:-1]:
            rows = layer(graph, rows).relu()
        return self.layers[-1](graph, rows)


torch.manual_seed(202)
network = Network()
optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
for _step in range(500):
    graph = Graph(nodes=192, degree=6)
    labels = graph.features[:, :4].argmax(1)
    loss = nn.functional.cross_entropy(network(graph), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
