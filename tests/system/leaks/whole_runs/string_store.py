# Thread: explosion/spaCy#10012 "Memory leak issue" (the vocabulary's string store grows with new words).
# Pattern: every unseen word gets an entry in the string store and a Lexeme with its features. Strings and
# Python objects only; made in a helper class three calls below the loop.
# Expected: one of the two assignments, holder `_map`/`_by_orth`/`strings`/`vocab`.
import random

import memagent
import torch
from torch import nn


class StringStore:
    def __init__(self):
        self._map = {}

    def add(self, string):
        key = hash(string) & 0xFFFFFFFFFFFF
        if key not in self._map:
            self._map[key] = string  # LEAK any _map|_by_orth|strings|vocab
        return key


class Lexeme:
    def __init__(self, orth, text):
        self.orth = orth
        self.lower = text.lower()
        self.shape = "".join("X" if c.isupper() else "d" if c.isdigit() else "x" for c in text)
        self.prefix, self.suffix = text[:1], text[-3:]
        self.norm = self.lower.strip()
        self.cluster, self.prob, self.sentiment = 0, -20.0, 0.0


class Vocab:
    def __init__(self):
        self.strings = StringStore()
        self._by_orth = {}

    def __getitem__(self, text):
        orth = self.strings.add(text)
        lexeme = self._by_orth.get(orth)
        if lexeme is None:
            lexeme = self._by_orth[orth] = Lexeme(
                orth, text
            )  # LEAK any _map|_by_orth|strings|vocab
        return lexeme


class Language:
    def __init__(self):
        self.vocab = Vocab()

    def __call__(self, text):
        return [self.vocab[word] for word in text.split()]


def document(rng, words=40):
    return " ".join(
        "".join(rng.choices("abcdefghijklmnopqrstuvwxyzABCDEF0123", k=rng.randint(4, 14)))
        for _ in range(words)
    )


def main():
    rng = random.Random(0)
    nlp = Language()
    model = nn.Sequential(nn.EmbeddingBag(5000, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memagent.attach(model, optimizer)
    for batch in range(800):
        docs = [nlp(document(rng)) for _ in range(3)]
        ids = torch.tensor([[lexeme.orth % 5000 for lexeme in doc] for doc in docs])
        loss = nn.functional.cross_entropy(model(ids), torch.randint(0, 4, (3,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
