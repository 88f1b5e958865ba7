"""Batch sentences by length: a bucket waits until it has enough of them."""

import random

import torch
from torch import nn


class Buckets:
    def __init__(self, size: int) -> None:
        self.size = size
        self.waiting = {}

    def add(self, sentence: list[int]) -> list[list[int]] | None:
        bucket = self.waiting.setdefault(len(sentence) // 4, [])
        bucket.append(sentence)
        return self.waiting.pop(len(sentence) // 4) if len(bucket) == self.size else None


def batches(seed: int, size: int):
    draw, buckets = random.Random(seed), Buckets(size)
    while True:
        length = 8 + int(draw.expovariate(0.02)) % 200
        if batch := buckets.add([draw.randrange(2_000) for _ in range(length)]):
            yield batch


torch.manual_seed(22)
model = nn.Sequential(nn.EmbeddingBag(2_000, 64), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters())
for step, batch in zip(range(600), batches(22, 32)):
    width = min(map(len, batch))
    tokens = torch.tensor([sentence[:width] for sentence in batch])
    loss = nn.functional.cross_entropy(model(tokens), tokens[:, 0] % 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
