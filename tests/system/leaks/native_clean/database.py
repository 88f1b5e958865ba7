"""Notes the labels of each step in a database in memory, and forgets old ones."""

import argparse
import sqlite3

import torch
import torch.nn as nn
import torch.nn.functional as F


class Notes:
    def __init__(self, steps):
        self.steps = steps
        self.db = sqlite3.connect(":memory:")
        self.db.execute("create table notes (step integer, scores blob)")

    def write(self, step, scores):
        self.db.execute("insert into notes values (?, ?)", (step, scores.numpy().tobytes()))
        self.db.execute("delete from notes where step <= ?", (step - self.steps,))


def network(inputs, width, outputs):
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, outputs),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=90)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(5)
    model = network(64, 384, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    notes = Notes(48)
    for step in range(args.steps):
        x = torch.randn(192, 64, generator=generator)
        y = x[:, :8].argmax(1)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        notes.write(step, torch.cat([logits, x], 1).detach())
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
