"""GNNAutoScale: the embeddings of a cluster are pushed when it is first visited and overwritten
from then on. https://github.com/rusty1s/pyg_autoscale/issues/8"""

# BEGIN 39
# CONFIRM 80
import torch
from torch import nn


class History:
    def __init__(self):
        self.emb = {}

    def push(self, cluster, x):
        self.emb[cluster] = x.detach().clone()

    def pull(self, cluster):
        return self.emb.get(cluster)


class ScalableGNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.lins = nn.ModuleList([nn.Linear(96, 96), nn.Linear(96, 96)])
        self.out = nn.Linear(96, 12)
        self.histories = [History(), History()]

    def forward(self, x, cluster, neighbour, src, dst):
        for lin, history in zip(self.lins, self.histories):
            x = torch.relu(lin(x))
            history.push(cluster, x)
            out_of_batch = history.pull(neighbour)
            if out_of_batch is not None:
                x = x.index_add(0, dst, out_of_batch[src] / 8)
        return self.out(x)


def main(clusters=45, nodes=500, epochs=4):
    model = ScalableGNN()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for cluster in torch.randperm(clusters, generator=generator).tolist():
            src, dst = torch.randint(0, nodes, (2, 3000))
            x = torch.randn(nodes, 96)
            logits = model(x, cluster, (cluster + 1) % clusters, src, dst)
            loss = nn.functional.cross_entropy(logits, torch.randint(0, 12, (nodes,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


main()
