"""Train a bag-of-subwords model on an endless stream of text with many rare words."""

import random

import torch
import torch.nn.functional as F
from torch import nn

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Tokenizer:
    """Split words into pieces, and remember the pieces of each word."""

    def __init__(self) -> None:
        self.cache = {}
        self.ids = {}

    def bpe(self, token: str) -> str:
        if token in self.cache:
            return self.cache[token]
        pieces = [token[i : i + 2] for i in range(0, len(token), 2)]
        word = " ".join(pieces)
        self.cache[token] = word
        return word

    def encode(self, text: str) -> list:
        found = []
        for token in text.split():
            for piece in self.bpe(token).split():
                found.append(self.ids.setdefault(piece, len(self.ids)))
        return found


def stream(rng: random.Random, words: int) -> str:
    return " ".join("".join(rng.choices(LETTERS, k=18)) for _ in range(words))


def main() -> None:
    torch.manual_seed(0)
    rng = random.Random(0)
    tokenizer = Tokenizer()
    model = nn.Sequential(nn.EmbeddingBag(1000, 64), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(600):
        ids = torch.tensor(tokenizer.encode(stream(rng, 2500)))
        bags = ids.clamp(max=999).view(50, -1)
        loss = F.cross_entropy(model(bags), torch.randint(0, 4, (50,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(step, float(loss), len(tokenizer.ids))


main()
