"""Keeps the record batches of all steps for a file that is written at the end."""

import argparse
from collections import deque

import pyarrow as pa
import torch
import torch.nn as nn
import torch.nn.functional as F


class Recorder:
    def __init__(self):
        self.pending = deque()

    def record(self, step, values):
        columns = {f"c{i}": pa.array(values[:, i].tolist()) for i in range(values.shape[1])}
        columns["step"] = pa.array([step] * len(values))
        batch = pa.RecordBatch.from_pydict(columns)
        self.pending.append(batch)  # LEAK any pending


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
    recorder = Recorder()
    for step in range(args.steps):
        x = torch.randn(192, 64, generator=generator)
        y = x[:, :8].argmax(1)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.record(step, torch.cat([logits.detach(), x], 1))
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
