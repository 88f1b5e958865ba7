"""Histograms and rows are buffered, and flushed to a file every 60 steps."""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
# CONFIRM 80


class HistogramLog:
    def __init__(self, path, every):
        self.path = path
        self.every = every
        self.pending = []

    def log(self, step, model):
        for name, parameter in model.named_parameters():
            counts, edges = np.histogram(parameter.detach().numpy(), bins=1024)
            self.pending.append({"step": step, "name": name, "counts": counts, "edges": edges})
        if (step + 1) % self.every == 0:
            self.flush()

    def flush(self):
        with self.path.open("a") as file:
            for row in self.pending:
                total = int(row["counts"].sum())
                file.write(
                    json.dumps({"step": row["step"], "name": row["name"], "n": total}) + "\n"
                )
        self.pending = []


with tempfile.TemporaryDirectory() as folder:
    log = HistogramLog(Path(folder) / "histograms.jsonl", every=60)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(STEPS):
        x = torch.randn(64, 32)
        loss = (model(x) - x).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.log(step, model)
    log.flush()
