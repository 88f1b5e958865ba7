"""The last token's state is a view of all of them: https://github.com/pytorch/pytorch/issues/50432."""

import torch
from torch import nn


class Prober:
    """Collects the last hidden state of each sequence for a linear probe."""

    def __init__(self):
        self.states = {}
        self.labels = {}

    def collect(self, keys, hidden, labels):
        last = hidden.detach()[:, -1]
        for row, key in enumerate(keys):
            self.states[key] = last[row]  # LEAK any Prober.states
            self.labels[key] = int(labels[row])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 96)
        self.rnn = nn.GRU(96, 96, batch_first=True)
        self.out = nn.Linear(96, 2)

    def forward(self, ids):
        hidden, _ = self.rnn(self.embedding(ids))
        return hidden, self.out(hidden[:, -1])


model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
prober = Prober()
for step in range(150):
    ids = torch.randint(0, 1000, (24, 48))
    labels = torch.randint(0, 2, (24,))
    hidden, logits = model(ids)
    loss = nn.functional.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    prober.collect(range(24 * step, 24 * step + 24), hidden, labels)
