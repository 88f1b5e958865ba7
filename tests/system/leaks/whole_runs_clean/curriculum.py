"""Curriculum: sequences get longer during the first half of training, then stay as they are."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Copier(nn.Module):
    def __init__(self, vocab=64, width=64):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.position = nn.Embedding(256, width)
        layer = nn.TransformerEncoderLayer(width, 4, 128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids):
        x = self.embed(ids) + self.position(torch.arange(ids.size(1)))
        return self.head(self.encoder(x))


def length_at(step, steps, low=8, high=120):
    return min(high, int(low + (high - low) * step / (0.5 * steps)))


class Trainer:
    def __init__(self, steps):
        self.model = Copier()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.steps = steps
        self.generator = torch.Generator().manual_seed(1)
        self.last_logits = None
        self.lengths = []

    def step(self, step):
        length = length_at(step, self.steps)
        ids = torch.randint(0, 64, (10, length), generator=self.generator)
        logits = self.model(ids)
        loss = F.cross_entropy(logits.flatten(0, 1), ids.flip(1).flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.last_logits = logits.detach()
        self.lengths.append(length)
        return loss.item()

    def run(self):
        for step in range(self.steps):
            loss = self.step(step)
            if step % 100 == 0:
                print(f"step {step} length {self.lengths[-1]} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=800)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    Trainer(options.steps).run()
