"""Link prediction on a stream of interactions, after temporal graph networks.

As in: memgraph/mage#121; pyg-team/pytorch_geometric#2039.
"""

import torch
from torch import nn

from tgn_linkpred_lib.tgn_memory import NodeMemory

NODES, DIM, EDGE, BATCH, STEPS = 2000, 96, 64, 192, 850


def interactions():
    now = 0.0
    while True:
        src = torch.randint(0, NODES // 2, (BATCH,))
        dst = NODES // 2 + (src * 7 + torch.randint(0, 5, (BATCH,))) % (NODES // 2)
        times = now + torch.rand(BATCH).sort().values
        now += 1.0
        yield src, dst, times, torch.randn(BATCH, EDGE)


class LinkPredictor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2 * DIM, 1024),
            nn.ReLU(),
            nn.Linear(1024, 1024),
            nn.ReLU(),
            nn.Linear(1024, 1),
        )

    def forward(self, a, b):
        return self.net(torch.cat([a, b], 1)).squeeze(1)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(4)
    memory, predictor = NodeMemory(NODES, DIM, EDGE), LinkPredictor()
    params = list(memory.parameters()) + list(predictor.parameters())
    optimizer = torch.optim.Adam(params, lr=1e-3)
    stream = interactions()
    for step in range(STEPS):
        src, dst, times, feats = next(stream)
        wrong = torch.randint(NODES // 2, NODES, (BATCH,))
        h = memory.read(torch.cat([src, dst, wrong]))
        h_src, h_dst, h_wrong = h.split(BATCH)
        scores = torch.cat([predictor(h_src, h_dst), predictor(h_src, h_wrong)])
        target = torch.cat([torch.ones(BATCH), torch.zeros(BATCH)])
        loss = nn.functional.binary_cross_entropy_with_logits(scores, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.write(src, dst, times, feats, h_src, h_dst)
        if step % 100 == 0:
            print(f"t={step} loss={loss.item():.4f}")


if __name__ == "__main__":
    main()
