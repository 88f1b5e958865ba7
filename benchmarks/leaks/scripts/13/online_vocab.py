"""Learn word vectors from a stream: a word gets its number and features when it first occurs."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

WORDS = 9_000


class Stream:
    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        ranks = np.arange(1, WORDS + 1)
        self.shares = (1 / ranks**0.9) / (1 / ranks**0.9).sum()
        self.names = [f"{'bcdfg'[n % 5]}{'aeiou'[n // 5 % 5]}word{n}" for n in range(WORDS)]

    def sentence(self, length: int):
        return [self.names[n] for n in self.random.choice(WORDS, length, p=self.shares)]


class Vocabulary:
    def __init__(self) -> None:
        self.numbers = {}
        self.entries = []

    def number(self, word: str) -> int:
        if word not in self.numbers:
            self.numbers[word] = len(self.entries)
            grams = [word[place : place + n] for n in (3, 4) for place in range(len(word) - n + 1)]
            hashes = {gram: hash_of(gram) for gram in grams}
            self.entries.append({"word": word, "grams": grams, "hashes": hashes})
        return self.numbers[word]


def hash_of(text: str) -> int:
    value = 2_166_136_261
    for letter in text.encode():
        value = (value ^ letter) * 16_777_619 % 2**32
    return value


torch.manual_seed(4)
stream, vocabulary = Stream(4), Vocabulary()
vectors, contexts = nn.Embedding(WORDS, 64), nn.Embedding(WORDS, 64)
optimizer = torch.optim.SGD([*vectors.parameters(), *contexts.parameters()], lr=0.1)
for step in range(1_000):
    numbers = torch.tensor([vocabulary.number(word) for word in stream.sentence(120)])
    left, right = vectors(numbers[:-1]), contexts(numbers[1:])
    loss = F.cross_entropy(left @ right.T, torch.arange(len(left)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(len(vocabulary.entries), f"{loss.item():.6f}")
