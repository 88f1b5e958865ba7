# Thread: facebookresearch/fairseq#232 "memory increase in every batch" (host memory) and corpus statistics
# kept for a repetition penalty. Pattern: counts of all n-grams of generated texts in a Counter of tuples.
# Expected: the line that updates the counter, holder `counts`.
from collections import Counter

import memagent
import torch
from torch import nn


class RepetitionTracker:
    def __init__(self, n=4):
        self.n = n
        self.counts = Counter()
        self.generated = 0

    def add(self, tokens):
        self.generated += len(tokens)
        self.counts.update(zip(*(tokens[i:] for i in range(self.n))))  # LEAK any counts

    def penalty(self, tokens):
        grams = list(zip(*(tokens[i:] for i in range(self.n))))
        return sum(self.counts[g] > 1 for g in grams) / max(1, len(grams))


class TinyLM(nn.Module):
    def __init__(self, vocab=1000, dim=64):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


def main():
    model = TinyLM()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    memagent.attach(model, optimizer)
    tracker = RepetitionTracker()
    for step in range(700):
        batch = torch.randint(0, 1000, (10, 40))
        penalty = 0.0
        for row in batch.tolist():
            tracker.add(row)
            penalty += tracker.penalty(row)
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()) + penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
