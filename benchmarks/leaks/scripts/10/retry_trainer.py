"""Sequence tagging where some batches are skipped, and the reasons are reported at the end.

pytorch/pytorch#10348 (exceptions and their frames), ray-project/ray#27946 (an exception kept as an attribute).
"""
from __future__ import annotations

import random

import torch
from torch import nn


class BadBatch(ValueError):
    pass


class Tagger(nn.Module):
    def __init__(self, vocab=800, dim=96):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.lstm = nn.LSTM(dim, dim, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(2 * dim, 9)

    def forward(self, tokens):
        hidden, _ = self.lstm(self.emb(tokens))
        return self.tags(hidden)


class Trainer:
    def __init__(self, model: nn.Module):
        self.model = model
        self.opt = torch.optim.Adam(model.parameters(), lr=1e-3)
        self.skipped: list[BadBatch] = []
        self.losses: list[float] = []

    def step(self, tokens: torch.Tensor, tags: torch.Tensor) -> None:
        scores = self.model(tokens)
        loss = nn.functional.cross_entropy(scores.transpose(1, 2), tags, ignore_index=-1)
        if not torch.isfinite(loss):
            raise BadBatch(f"loss is {loss.item()} with {int((tags >= 0).sum())} tags")
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.losses.append(loss.item())

    def fit(self, batches) -> None:
        for tokens, tags in batches:
            try:
                self.step(tokens, tags)
            except BadBatch as error:
                self.skipped.append(error)


def corpus(n: int):
    for i in range(n):
        tokens = torch.randint(0, 800, (16, 40))
        tags = tokens % 9
        if random.random() < 0.3:
            tags = torch.full_like(tags, -1)  # unlabelled: the mean over no tags is nan
        yield tokens, tags


if __name__ == "__main__":
    random.seed(12)
    torch.manual_seed(12)
    torch.set_num_threads(1)
    trainer = Trainer(Tagger())
    for part in range(6):
        trainer.fit(corpus(100))
        recent = trainer.losses[-50:]
        print(f"part {part} loss {sum(recent) / len(recent):.4f} skipped {len(trainer.skipped)}")
    print("first reason:", trainer.skipped[0])
