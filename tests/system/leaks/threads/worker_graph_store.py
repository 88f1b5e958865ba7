"""Each worker keeps the graphs that it loaded: https://github.com/pyg-team/pytorch_geometric/issues/10356."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Graph:
    def __init__(self, x, edges):
        self.x, self.edges = x, edges


class GraphStore:
    def __init__(self):
        self.loaded = {}

    def read(self, index):
        if index not in self.loaded:
            generator = torch.Generator().manual_seed(index)
            graph = Graph(
                torch.randn(200, 32, generator=generator), torch.randint(0, 200, (2, 800))
            )
            self.loaded[index] = graph  # LEAK any GraphStore.loaded
        return self.loaded[index]


class GraphDataset(Dataset):
    def __init__(self, size):
        self.size, self.store = size, GraphStore()

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        graph = self.store.read(index)
        return graph.x, graph.edges


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 64), nn.Linear(64, 1)

    def forward(self, x, edges):
        h = torch.relu(self.a(x))
        gathered = torch.stack([g.index_select(0, e[0]).mean(0) for g, e in zip(h, edges)])
        return self.b(gathered)


def main():
    model = Conv()
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(GraphDataset(16 * 150), batch_size=16, shuffle=True, num_workers=1)
    for x, edges in loader:
        loss = model(x, edges).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
