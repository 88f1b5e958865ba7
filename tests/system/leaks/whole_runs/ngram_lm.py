"""A transformer language model, with the novelty of each batch measured by its four-grams.

As in: nltk/nltk#3665; piskvorky/gensim#1446.
"""

from collections import Counter

import torch
from torch import nn

VOCAB, LENGTH = 1000, 32


class Novelty:
    def __init__(self, n=4):
        self.n = n
        self.counts = Counter()

    def score(self, batch):
        grams = [
            tuple(row[i : i + self.n])
            for row in batch.tolist()
            for i in range(len(row) - self.n + 1)
        ]
        new = sum(g not in self.counts for g in grams)
        self.counts.update(grams)  # LEAK any counts|Novelty
        return new / len(grams)


class LM(nn.Module):
    def __init__(self, dim=96, heads=4, depth=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, dim), nn.Parameter(torch.zeros(LENGTH, dim))
        layer = nn.TransformerEncoderLayer(
            dim, heads, 2 * dim, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(dim, VOCAB)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH - 1))

    def forward(self, ids):
        h = self.tok(ids) + self.pos[: ids.size(1)]
        return self.out(self.body(h, mask=self.mask, is_causal=True))


def text(n=36):
    ids = torch.randint(0, VOCAB, (n, LENGTH))
    ids[:, 1::2] = (ids[:, ::2] * 3 + 1) % VOCAB
    return ids


def main(steps=1000):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model, novelty = LM(), Novelty()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(steps):
        ids = text()
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        new = novelty.score(ids)  # LEAK any counts|Novelty
        if step % 100 == 0:
            print(f"{step}: loss {loss.item():.3f}, new {new:.1%}")


main()
