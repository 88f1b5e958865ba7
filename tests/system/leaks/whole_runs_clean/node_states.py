"""Message passing on sampled subgraphs; the last state of each visited node is remembered.

State of each node, all visited at 38%.
"""

import torch
from torch import nn

NODES, DIM = 9_000, 256


class Graph:
    def __init__(self, nodes, degree=8):
        self.features = torch.randn(nodes, 48)
        self.neighbors = (
            torch.arange(nodes)[:, None] + torch.randint(1, 40, (nodes, degree))
        ) % nodes

    def subgraph(self, seeds):
        hop = self.neighbors[seeds].flatten()
        nodes, local = torch.cat([seeds, hop]).unique(return_inverse=True)
        src = local[len(seeds) :]
        dst = local[: len(seeds)].repeat_interleave(self.neighbors.size(1))
        return nodes, local[: len(seeds)], torch.stack([src, dst])


class SAGE(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.self_, self.nbr = (
            nn.Linear(48, DIM),
            nn.Linear(DIM, DIM),
            nn.Linear(DIM, DIM),
        )
        self.out = nn.Sequential(
            nn.Linear(DIM, 1400), nn.ReLU(), nn.Linear(1400, 1400), nn.ReLU(), nn.Linear(1400, 5)
        )

    def forward(self, x, edges, past):
        h = torch.relu(self.inp(x)) + 0.1 * past
        gathered = torch.zeros_like(h).index_add_(0, edges[1], h[edges[0]])
        count = torch.zeros(len(h)).index_add_(0, edges[1], torch.ones(edges.size(1))).clamp(min=1)
        h = torch.relu(self.self_(h) + self.nbr(gathered / count[:, None]))
        return h, self.out(h)


class States(dict):
    def read(self, nodes):
        zero = torch.zeros(DIM)
        return torch.stack([self.get(n, zero) for n in nodes.tolist()])

    def write(self, nodes, h):
        for n, row in zip(nodes.tolist(), h):
            self[n] = row.clone()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    graph, model, states = Graph(NODES), SAGE(), States()
    labels = (graph.features[:, :5]).argmax(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(900):
        first = (step * 26) % NODES
        seeds = (torch.arange(26) + first) % NODES
        nodes, local, edges = graph.subgraph(seeds)
        h, logits = model(graph.features[nodes], edges, states.read(nodes))
        loss = nn.functional.cross_entropy(logits[local], labels[seeds])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        states.write(nodes, h.detach())
        if step % 100 == 0:
            print(step, round(loss.item(), 4), len(states))


if __name__ == "__main__":
    main()
