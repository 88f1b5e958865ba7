"""A byte-pair tokenizer caches every token that it ever met, and a stream of logs has new ones for
good. https://github.com/EleutherAI/gpt-neox/pull/383"""

import random
import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


class Tokenizer:
    def __init__(self, vocabulary=2048):
        self.vocabulary = vocabulary
        self.cache = {}

    def bpe(self, token):
        if token in self.cache:
            return self.cache[token]
        pieces = [token[i : i + 3] for i in range(0, len(token), 3)]
        word = " ".join(pieces)
        self.cache[token] = word  # LEAK any cache
        return word

    def encode(self, text):
        return [
            hash(piece) % self.vocabulary
            for token in text.split()
            for piece in self.bpe(token).split(" ")
        ]


def log_lines(count):
    for _ in range(count):
        request = f"{random.getrandbits(128):032x}"
        path = "/".join(f"{random.getrandbits(40):010x}" for _ in range(3))
        yield f"GET /{path} request={request} took {random.randrange(900)} ms"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(2048, 32)
        self.rnn = nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, 2048)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


tokenizer = Tokenizer()
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(STEPS):
    rows = [tokenizer.encode(line)[:16] for line in log_lines(160)]
    ids = torch.tensor([row + [0] * (16 - len(row)) for row in rows[:16]])
    logits = model(ids[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
