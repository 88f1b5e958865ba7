"""Read records from shards of different sizes: the index of each file stays after its last row."""

import random

import torch
import torch.nn.functional as F
from torch import nn


class Shard:
    def __init__(self, name: str, rows: int) -> None:
        draw = random.Random(name)
        self.name = name
        self.index = [
            {"key": f"{name}/{row:06d}", "label": draw.randrange(10), "tags": [draw.random()] * 6}
            for row in range(rows)
        ]


class ShardReader:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._open = {}
        self._number = 0

    def shards(self):
        while True:
            name = f"part-{self._number:05d}"
            self._number += 1
            shard = Shard(name, self.random.randrange(600, 2_400))
            self._open[name] = shard
            yield shard

    def batches(self, size: int):
        for shard in self.shards():
            for first in range(0, len(shard.index) - size, size):
                yield shard.index[first : first + size]


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(4_096, 128)
        self.layers = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, keys):
        return self.layers(self.embed(keys))


torch.manual_seed(6)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters())
for step, rows in zip(range(1_400), ShardReader(6).batches(48)):
    keys = torch.tensor([[ord(letter) * place % 4_096 for place, letter in enumerate(row["key"], 7)]
                         for row in rows])  # fmt: skip
    labels = torch.tensor([row["label"] for row in rows])
    loss = F.cross_entropy(model(keys), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
