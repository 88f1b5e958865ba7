# Thread: mjpost/sacrebleu#217 "lru_cache max size is not set in tokenizer_spm.py".
# Pattern: functools.lru_cache with a limit of 2**20 lines on a tokenizer's method of a module-level
# instance; each line of the corpus is new. Plain Python strings and lists, no tensors.
# Expected: the decorator, the def or the return of `tokenize` (the call site is acceptable as the line
# that fills it), holder `tokenize`/`lru_cache`/`_lru_cache_wrapper`/cache.
import random
import string
from functools import lru_cache

import memagent
import torch
from torch import nn

RNG = random.Random(13)


class TokenizerSPM:
    @lru_cache(maxsize=2**20)  # LEAK any tokenize|lru_cache|cache
    def __call__(self, line):  # LEAK any tokenize|lru_cache|cache|__call__
        pieces = []
        for word in line.split():
            pieces.append("\u2581" + word[:3])
            pieces.extend(word[i : i + 2] for i in range(3, len(word), 2))
        return " ".join(pieces)  # LEAK any tokenize|lru_cache|cache|__call__


tokenizer = TokenizerSPM()


def sentence(words=60):
    return " ".join(
        "".join(RNG.choices(string.ascii_lowercase, k=RNG.randint(4, 12))) for _ in range(words)
    )


def overlap(a, b):
    a, b = a.split(), b.split()
    return len(set(a) & set(b)) / max(1, len(b))


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(2048, 64)
        self.out = nn.Linear(64, 1)

    def forward(self, ids):
        return self.out(torch.relu(self.embed(ids))).squeeze(-1)


def encode(text, length=48):
    ids = [hash(p) % 2048 for p in text.split()][:length]
    return ids + [0] * (length - len(ids))


def main():
    model = Scorer()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    memagent.attach(model, optimizer)
    for step in range(1000):
        texts = [(sentence(), sentence()) for _ in range(12)]
        pairs = [
            (tokenizer(a), tokenizer(b)) for a, b in texts
        ]  # LEAK any tokenize|lru_cache|cache|__call__
        scores = torch.tensor([overlap(a, b) for a, b in pairs])
        loss = (model(torch.tensor([encode(a) for a, _ in pairs])) - scores).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
