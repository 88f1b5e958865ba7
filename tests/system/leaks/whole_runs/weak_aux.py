"""Graph classification; auxiliary tensors of a batch live in a weak dictionary next to it.

As in: python/cpython#88846.
"""

import argparse
import weakref
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F

# nothing to clean up by hand: entries go away with their batch
AUX = weakref.WeakKeyDictionary()


@dataclass(eq=False)
class GraphBatch:
    nodes: torch.Tensor
    adjacency: torch.Tensor
    labels: torch.Tensor
    meta: dict = field(default_factory=dict)


@dataclass
class AuxInfo:
    source: GraphBatch
    degree: torch.Tensor
    normalised: torch.Tensor


def aux_of(batch):
    info = AUX.get(batch)
    if info is None:
        degree = batch.adjacency.sum(-1, keepdim=True)
        normalised = batch.adjacency / degree
        info = AuxInfo(batch, degree, normalised)
        AUX[batch] = info  # LEAK any AUX
    return info


class GraphNet(nn.Module):
    def __init__(self, inputs=32, width=128, classes=4):
        super().__init__()
        self.inp = nn.Linear(inputs, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, classes)

    def forward(self, batch):
        info = aux_of(batch)
        x = F.relu(self.inp(info.normalised @ batch.nodes))
        x = F.relu(self.mid(info.normalised @ x))
        return self.out(x.mean(1))


def make_batch(generator, graphs=24, nodes=48):
    features = torch.randn(graphs, nodes, 32, generator=generator)
    adjacency = (torch.rand(graphs, nodes, nodes, generator=generator) < 0.15).float()
    adjacency = ((adjacency + adjacency.transpose(1, 2)) > 0).float() + torch.eye(nodes)
    labels = (adjacency.sum((1, 2)) / nodes).long() % 4
    return GraphBatch(features, adjacency, labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(2)
    model = GraphNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        batch = make_batch(generator)
        loss = F.cross_entropy(model(batch), batch.labels)
        loss = loss + 1e-4 * aux_of(batch).degree.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
