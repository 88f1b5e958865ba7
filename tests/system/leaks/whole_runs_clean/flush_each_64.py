# A metric writer that holds rows of the last 64 steps and writes them to a file, then empties its list.
import json
import os
import tempfile

import memagent
import torch
from torch import nn


class BufferedWriter:
    def __init__(self, path, every):
        self.path, self.every = path, every
        self.rows = []

    def write(self, row):
        self.rows.append(row)
        if len(self.rows) >= self.every:
            self.flush()

    def flush(self):
        with open(self.path, "w") as file:
            for row in self.rows:
                file.write(
                    json.dumps({"step": row["step"], "mean": row["hist"].mean().item()}) + "\n"
                )
        self.rows = []


def main():
    model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128))
    optimizer = torch.optim.Adam(model.parameters())
    memagent.attach(model, optimizer)
    writer = BufferedWriter(os.path.join(tempfile.mkdtemp(), "rows.jsonl"), 64)
    for step in range(850):
        x = torch.randn(64, 128)
        loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        writer.write({"step": step, "hist": model[0].weight.grad.detach().abs()})


main()
