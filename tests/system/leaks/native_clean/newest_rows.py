"""Keeps the newest rows as an Arrow table."""

import argparse

import pyarrow as pa
import torch
import torch.nn as nn
import torch.nn.functional as F


class Newest:
    def __init__(self, rows):
        self.rows = rows
        self.table = None

    def add(self, step, values):
        columns = {f"c{i}": pa.array(values[:, i].tolist()) for i in range(values.shape[1])}
        chunk = pa.table(columns)
        table = chunk if self.table is None else pa.concat_tables([self.table, chunk])
        start = max(0, table.num_rows - self.rows)
        self.table = table.slice(start).combine_chunks()


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
    newest = Newest(4000)
    for step in range(args.steps):
        x = torch.randn(192, 64, generator=generator)
        y = x[:, :8].argmax(1)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        newest.add(step, torch.cat([logits.detach(), x], 1))
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
