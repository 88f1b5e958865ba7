"""Text classification; batches pad themselves lazily and cache the result.

As in: meta-pytorch/botorch#1650; Kimi-Audio#117.
"""

import argparse
import functools

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Batch:
    """Ragged rows of token ids."""

    def __init__(self, rows, labels):
        self.rows = rows
        self.labels = labels

    @functools.lru_cache(maxsize=None)
    def padded(self):
        length = max(len(row) for row in self.rows)
        out = np.zeros((len(self.rows), length), dtype=np.int64)
        for i, row in enumerate(self.rows):
            out[i, : len(row)] = row
        return out

    @functools.lru_cache(maxsize=None)
    def mask(self):
        ids = self.padded()  # LEAK any lru_cache|padded|mask|cache
        return (ids != 0).astype(np.float32)


class BagClassifier(nn.Module):
    def __init__(self, vocab=2000, width=64, classes=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.mlp = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, classes))

    def forward(self, ids, mask):
        vectors = self.embed(ids) * mask.unsqueeze(-1)
        return self.mlp(vectors.sum(1) / mask.sum(1, keepdim=True))


class Corpus:
    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)

    def batch(self, size=48):
        labels = self.rng.integers(0, 6, size)
        rows = []
        for label in labels:
            length = int(self.rng.integers(40, 160))
            rows.append(self.rng.integers(1 + label * 300, 501 + label * 300, length).clip(1, 1999))
        return Batch(rows, labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    corpus, model = Corpus(), BagClassifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(args.steps):
        batch = corpus.batch()
        ids, mask = (
            torch.from_numpy(batch.padded()),
            torch.from_numpy(batch.mask()),
        )  # LEAK any lru_cache|padded|mask|cache
        loss = F.cross_entropy(model(ids, mask), torch.from_numpy(batch.labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f} width {batch.padded().shape[1]}", flush=True)


if __name__ == "__main__":
    main()
