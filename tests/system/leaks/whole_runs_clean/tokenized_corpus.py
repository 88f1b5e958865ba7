"""Sentence classifier. Tokenized sentences are kept in a bounded cache.

Lru_cache with maxsize, full near the middle.
"""

import functools
import random
import re

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
random.seed(0)
torch.manual_seed(0)
SYLLABLES = [a + b for a in "bcdfghklmnprstvz" for b in "aeiou"]


def sentence(number):
    r = random.Random(number)
    return " ".join("".join(r.choices(SYLLABLES, k=r.randint(1, 3))) for _ in range(60))


@functools.lru_cache(maxsize=14_000)
def tokenize(text):
    words = re.findall(r"\w+", text)
    pieces = [p for w in words for p in re.findall(r"[^aeiou]?[aeiou]", w)]
    ids = np.array([hash_piece(p) for p in pieces[:150]], np.int64)
    return np.pad(ids, (0, 150 - len(ids)))


@functools.cache
def hash_piece(piece):
    return 1 + sum(ord(c) * 31**i for i, c in enumerate(piece)) % 511


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(512, 64)
        self.conv = nn.Conv1d(64, 128, 5, padding=2)
        self.out = nn.Linear(128, 2)

    def forward(self, ids):
        return self.out(torch.relu(self.conv(self.emb(ids).transpose(1, 2))).amax(2))


model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(900):
    numbers = [random.randrange(60_000) for _ in range(36)]
    ids = torch.from_numpy(np.stack([tokenize(sentence(n)) for n in numbers]))
    labels = (ids[:, 0] % 2).long()
    loss = nn.functional.cross_entropy(model(ids), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(step, round(loss.item(), 4), tokenize.cache_info())
