"""Counts predictions in a temporary table that is never emptied."""

import argparse
import sqlite3

import torch
import torch.nn as nn
import torch.nn.functional as F


def record(connection, step, logits):
    rows = [
        (step, i, label, row)
        for i, (label, row) in enumerate(
            zip(logits.argmax(1).tolist(), logits.numpy().tobytes(), strict=False)
        )
    ]
    rows = [(*row[:3], logits[row[1]].repeat(8).numpy().tobytes()) for row in rows]
    connection.executemany("insert into seen values (?, ?, ?, ?)", rows)  # LEAK any connection|db


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
    db = sqlite3.connect(":memory:")
    db.execute("pragma temp_store = memory")
    db.execute("create temp table seen (step, row, label, scores blob)")

    for step in range(args.steps):
        x = torch.randn(192, 64, generator=generator)
        y = x[:, :8].argmax(1)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        record(db, step, logits.detach())
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
