"""A node memory is written with its graph: https://github.com/amazon-science/tgl/issues/24."""

import torch
import torch.nn.functional as F
from torch import nn


class NodeMemory(nn.Module):
    def __init__(self, nodes, dim):
        super().__init__()
        self.cell = nn.GRUCell(dim, dim)
        self.dim = dim
        self.state = torch.zeros(nodes, dim)

    def read(self, ids):
        return self.state[ids].detach()

    def update(self, ids, messages):
        fresh = self.cell(messages, self.state[ids])
        self.state = self.state.index_copy(0, ids, fresh)  # LEAK any NodeMemory.state


class LinkPredictor(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2 * dim, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, source, target):
        return self.net(torch.cat([source, target], dim=-1)).squeeze(-1)


def main():
    torch.manual_seed(0)
    nodes, dim, batch_size = 2000, 64, 256
    memory = NodeMemory(nodes, dim)
    predictor = LinkPredictor(dim)
    optimizer = torch.optim.Adam([*memory.parameters(), *predictor.parameters()], lr=1e-4)
    for event in range(150):
        source = torch.randperm(nodes)[:batch_size]
        target = torch.randperm(nodes)[:batch_size]
        messages = torch.randn(batch_size, dim)
        labels = (torch.rand(batch_size) > 0.5).float()
        logits = predictor(memory.read(source) + messages, memory.read(target))
        loss = F.binary_cross_entropy_with_logits(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.update(source, messages)
        if event % 50 == 0:
            print(event, loss.item())


if __name__ == "__main__":
    main()
