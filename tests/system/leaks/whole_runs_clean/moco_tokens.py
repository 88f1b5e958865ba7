"""Key queue grows by concatenation until K at 38%."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    def __init__(self, vocab=800, dim=256):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, 128)
        self.mlp = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, dim))

    def forward(self, ids):
        return F.normalize(self.mlp(self.bag(ids)), dim=1)


class MoCo(nn.Module):
    """The queue grows by concatenation until it holds K keys."""

    def __init__(self, K=40_000, dim=256):  # noqa: N803
        super().__init__()
        self.q, self.K = Encoder(dim=dim), K
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.queue = torch.empty(0, dim)

    def forward(self, a, b, m=0.99):
        q = self.q(a)
        with torch.no_grad():
            for pk, pq in zip(self.k.parameters(), self.q.parameters()):
                pk.mul_(m).add_(pq, alpha=1 - m)
            k = self.k(b)
        pick = torch.randint(0, max(1, len(self.queue)), (1024,))
        negatives = self.queue[pick] if len(self.queue) else k.roll(1, 0)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ negatives.T], 1) / 0.1
        self.queue = torch.cat([self.queue, k])[-self.K :].clone() if self.training else self.queue
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = MoCo()
    opt = torch.optim.SGD(model.q.parameters(), lr=0.03, momentum=0.9)
    for step in range(1000):
        base = torch.randint(0, 800, (104, 24))
        drop = lambda: torch.where(torch.rand(base.shape) < 0.2, 0, base)  # noqa: B023, E731
        loss = model(drop(), drop())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 100 == 0:
            print(f"{step} {loss.item():.4f} {tuple(model.queue.shape)}")


main()
