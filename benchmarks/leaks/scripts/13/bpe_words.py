"""Train on text of a small language: the tokenizer remembers how it has split each word."""

import random

import torch
import torch.nn.functional as F
from torch import nn


class Tokenizer:
    def __init__(self) -> None:
        self.cache = {}
        self.ranks = {}

    def split(self, word: str):
        if word in self.cache:
            return self.cache[word]
        pieces = list(word)
        while len(pieces) > 2:
            place = min(range(len(pieces) - 1), key=lambda n: self.rank(pieces[n] + pieces[n + 1]))
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
        self.cache[word] = [{"piece": piece, "id": self.rank(piece)} for piece in pieces]
        return self.cache[word]

    def rank(self, pair: str) -> int:
        return sum(ord(letter) * 31**place for place, letter in enumerate(pair)) % 5_003

    def encode(self, words):
        return [entry["id"] for word in words for entry in self.split(word)]


def lexicon(count: int):
    draw = random.Random(9)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    return ["".join(draw.choices(syllables, k=draw.randrange(2, 6))) for _ in range(count)]


random.seed(9)
torch.manual_seed(9)
words = lexicon(6_000)
weights = [1 / (rank + 20) for rank in range(len(words))]
tokenizer = Tokenizer()
model = nn.Sequential(nn.Embedding(5_003, 64), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 512))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1_000):
    ids = torch.tensor(tokenizer.encode(random.choices(words, weights, k=140)))
    loss = F.cross_entropy(model(ids[:-1]), ids[1:] % 512)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(len(tokenizer.cache), f"{loss.item():.6f}")
