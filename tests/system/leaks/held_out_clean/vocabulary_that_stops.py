"""A vocabulary grows with the words of the stream until it has them all; the embedding table doubles
while it must."""

import random
import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
# CONFIRM 80


class Vocabulary:
    def __init__(self):
        self.index = {"<pad>": 0}

    def lookup(self, word):
        return self.index.setdefault(word, len(self.index))


class Tagger(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.head = nn.Linear(width, 5)

    def grow(self, rows):
        if rows <= self.embed.num_embeddings:
            return False
        bigger = nn.Embedding(self.embed.num_embeddings * 2, self.embed.embedding_dim)
        with torch.no_grad():
            bigger.weight[: self.embed.num_embeddings] = self.embed.weight
        self.embed = bigger
        return True

    def forward(self, ids):
        return self.head(self.embed(ids))


def sentence(length=24):
    return [f"word-{int(random.paretovariate(0.7)) % 6000}" for _ in range(length)]


vocabulary = Vocabulary()
tagger = Tagger()
optimizer = torch.optim.Adam(tagger.parameters(), lr=1e-3)
for step in range(STEPS):
    ids = torch.tensor([[vocabulary.lookup(w) for w in sentence()] for _ in range(24)])
    if tagger.grow(len(vocabulary.index)):
        optimizer = torch.optim.Adam(tagger.parameters(), lr=1e-3)
    tags = ids % 5
    loss = nn.functional.cross_entropy(tagger(ids).flatten(0, 1), tags.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
