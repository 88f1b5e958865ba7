"""Interner filled with all entities at a third."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)


class Interner:
    """Gives every entity one record, made when the entity is seen first."""

    def __init__(self) -> None:
        self.records: dict[str, dict] = {}

    def __call__(self, name: str) -> dict:
        record = self.records.get(name)
        if record is None:
            r = np.random.default_rng(len(self.records))
            record = {
                "id": len(self.records),
                "name": name,
                "aliases": [f"{name}/{k}" for k in range(12)],
                "sketch": r.standard_normal(600),
            }
            self.records[name] = record
        return record


class Knowledge:
    def __init__(self, entities: int = 12_000) -> None:
        self.names = [f"http://example.org/entity/{i:08x}" for i in range(entities)]
        random.Random(0).shuffle(self.names)
        self.cursor = 0

    def triples(self, n: int) -> list[tuple[str, int, str]]:
        """Heads come in turn (so that all are seen early), tails at random among the seen."""
        out = []
        for _ in range(n):
            head = self.names[self.cursor % len(self.names)]
            self.cursor += 1
            tail = self.names[random.randrange(min(self.cursor, len(self.names)))]
            out.append((head, random.randrange(8), tail))
        return out


class TransE(nn.Module):
    def __init__(self, entities: int, relations: int, dim: int = 128) -> None:
        super().__init__()
        self.e, self.r = nn.Embedding(entities, dim), nn.Embedding(relations, dim)
        self.mix = nn.Sequential(nn.Linear(600, 384), nn.ReLU(), nn.Linear(384, dim))

    def forward(self, head, sketch, relation, tail):
        return (self.e(head) + self.mix(sketch) + self.r(relation) - self.e(tail)).norm(dim=1)


random.seed(0)
torch.manual_seed(0)
interner, knowledge, model = Interner(), Knowledge(), TransE(12_000, 8)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
for step in range(1000):
    triples = [(interner(h), r, interner(t)) for h, r, t in knowledge.triples(36)]
    triples = triples * 8
    head = torch.tensor([h["id"] for h, _, _ in triples])
    sketch = torch.from_numpy(np.stack([h["sketch"] for h, _, _ in triples])).float()
    relation = torch.tensor([r for _, r, _ in triples])
    tail = torch.tensor([t["id"] for _, _, t in triples])
    good, bad = model(head, sketch, relation, tail), model(head, sketch, relation, tail.roll(1))
    loss = torch.relu(1 + good - bad).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(step, round(loss.item(), 4), len(interner.records))
