"""Sequence tagger that files its predictions in a run database.

As in: python/cpython#123739-like.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

from sqlite_predictions_lib.run_database import RunDatabase


class Tagger(nn.Module):
    def __init__(self, vocab=300, width=96, tags=9):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.gru = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, tags)

    def forward(self, ids):
        hidden, _ = self.gru(self.embed(ids))
        return self.head(hidden)


def sentences(generator, size=32, length=40, vocab=300):
    ids = torch.randint(0, vocab, (size, length), generator=generator)
    return ids, (ids + ids.roll(1, 1)) % 9


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=800)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(3)
    model, store = Tagger(), RunDatabase()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(args.steps):
        ids, tags = sentences(generator)
        logits = model(ids)
        loss = F.cross_entropy(logits.flatten(0, 1), tags.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        store.metric(
            step, loss=loss.item(), accuracy=(logits.argmax(-1) == tags).float().mean().item()
        )
        store.blob(step, logits.detach().double().numpy())
        if step % 100 == 0:
            print(f"step {step} loss {store.mean('loss', step - 50):.4f}", flush=True)


if __name__ == "__main__":
    main()
