# Vectors for words out of the vocabulary are made on demand up to a limit of 6000; later ones share a
# bucket. Filled after some 500 steps. Clean.
import random
import string

import memagent
import torch
from torch import nn

MAX_OOV = 6000


class OovVectors:
    def __init__(self, dim):
        self.dim = dim
        self.vectors = {}
        self.bucket = torch.zeros(dim)

    def lookup(self, word):
        vector = self.vectors.get(word)
        if vector is None:
            if len(self.vectors) >= MAX_OOV:
                return self.bucket
            generator = torch.Generator().manual_seed(hash(word) % 2**31)
            vector = self.vectors[word] = torch.randn(self.dim, generator=generator)
        return vector


def main():
    rng = random.Random(4)
    table = OovVectors(600)
    model = nn.LSTM(600, 48, batch_first=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    memagent.attach(model, optimizer)
    for _ in range(850):
        words = ["".join(rng.choices(string.ascii_lowercase, k=6)) for _ in range(12)]
        x = torch.stack([table.lookup(w) for w in words])[None]
        loss = model(x)[0].pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
