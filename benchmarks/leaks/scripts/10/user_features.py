"""Recommender with features of users that are computed on first sight and kept.

The cache of pytorch/pytorch#35642: it stops to grow when every user has been seen.
"""
import argparse

import torch
from torch import nn


class FeatureService:
    """Expensive features of one user: 8 windows of 512 values."""

    def __init__(self, users):
        self.users, self.cache, self.computed = users, {}, 0

    def _compute(self, user):
        self.computed += 1
        gen = torch.Generator().manual_seed(user)
        raw = torch.randn(8, 512, generator=gen)
        return torch.fft.rfft(raw, dim=1).abs().log1p()

    def __getitem__(self, user):
        if user not in self.cache:
            self.cache[user] = self._compute(user)
        return self.cache[user]


class Ranker(nn.Module):
    def __init__(self, items):
        super().__init__()
        self.user = nn.Sequential(nn.Flatten(), nn.Linear(8 * 257, 512), nn.ReLU(), nn.Linear(512, 64))
        self.item = nn.Embedding(items, 64)

    def forward(self, features):
        return self.user(features) @ self.item.weight.T


def parse():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--users", type=int, default=6000)
    p.add_argument("--items", type=int, default=3000)
    p.add_argument("--steps", type=int, default=800)
    p.add_argument("--batch", type=int, default=48)
    return p.parse_args()


def main():
    args = parse()
    torch.manual_seed(2)
    torch.set_num_threads(1)
    service, model = FeatureService(args.users), Ranker(args.items)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    running = None
    for step in range(1, args.steps + 1):
        users = torch.randint(0, args.users, (args.batch,)).tolist()
        features = torch.stack([service[u] for u in users])
        liked = torch.tensor([u * 7919 % args.items for u in users])
        loss = nn.functional.cross_entropy(model(features), liked)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        running = loss.item() if running is None else 0.98 * running + 0.02 * loss.item()
        if step % 100 == 0:
            print(f"step {step} loss {running:.3f} users seen {service.computed}")


if __name__ == "__main__":
    main()
