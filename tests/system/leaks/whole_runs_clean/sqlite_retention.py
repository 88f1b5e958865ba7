"""An in-memory SQLite store of predictions that keeps the last 300 steps."""

import argparse
import sqlite3

import torch
import torch.nn as nn
import torch.nn.functional as F


class Store:
    def __init__(self, retention):
        self.retention = retention
        self.db = sqlite3.connect(":memory:")
        self.db.execute(
            "CREATE TABLE predictions (step INTEGER PRIMARY KEY, loss REAL, payload BLOB)"
        )

    def add(self, step, loss, array):
        self.db.execute("INSERT INTO predictions VALUES (?, ?, ?)", (step, loss, array.tobytes()))
        self.db.execute("DELETE FROM predictions WHERE step <= ?", (step - self.retention,))
        self.db.commit()

    def summary(self):
        return self.db.execute("SELECT COUNT(*), AVG(loss) FROM predictions").fetchone()


class Scorer(nn.Module):
    def __init__(self, inputs=80, width=352, outputs=48):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(inputs, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, outputs),
        )

    def forward(self, x):
        return self.net(x)


def train(steps, retention):
    generator = torch.Generator().manual_seed(33)
    model, store = Scorer(), Store(retention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        x = torch.randn(192, 80, generator=generator)
        y = x[:, :48].argmax(1)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        store.add(step, loss.item(), logits.detach().double().numpy())
        if step % 100 == 0:
            count, mean = store.summary()
            print(f"step {step} rows {count} mean loss {mean:.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--retention", type=int, default=300)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train(options.steps, options.retention)
