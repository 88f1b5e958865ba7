"""Cached feature extraction with a bound: at most 350 documents are kept."""

import argparse
from collections import OrderedDict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class FeatureCache:
    def __init__(self, capacity):
        self.capacity = capacity
        self.entries = OrderedDict()
        self.hits = self.misses = 0

    def get(self, key, compute):
        if key in self.entries:
            self.entries.move_to_end(key)
            self.hits += 1
            return self.entries[key]
        self.misses += 1
        value = self.entries[key] = compute(key)
        if len(self.entries) > self.capacity:
            self.entries.popitem(last=False)
        return value


def features(document):
    rng = np.random.default_rng(document)
    return rng.standard_normal((160, 192)).astype(np.float32) + document % 7


class Pooler(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.score = nn.Linear(width, 1)
        self.net = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 512), nn.GELU(), nn.Linear(512, 7)
        )

    def forward(self, x):
        weights = self.score(x).softmax(1)
        return self.net((weights * x).sum(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    cache, model = FeatureCache(350), Pooler()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        recent = rng.integers(max(0, step - 40), step + 8, 8)  # a moving window of documents
        x = torch.from_numpy(np.stack([cache.get(int(d), features) for d in recent]))
        y = torch.from_numpy(recent % 7)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(
                f"step {step} loss {loss.item():.4f} cached {len(cache.entries)} hits {cache.hits}",
                flush=True,
            )


if __name__ == "__main__":
    main()
