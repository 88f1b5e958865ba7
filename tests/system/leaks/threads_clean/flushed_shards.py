"""Rows are collected and written to a file at every ninth step."""

import os
import tempfile

import torch
from torch import nn


class ShardWriter:
    def __init__(self, folder, size):
        self.folder, self.size = folder, size
        self.rows, self.shards = [], 0

    def add(self, row):
        self.rows.append(row)
        if len(self.rows) == self.size:
            torch.save(torch.stack(self.rows), os.path.join(self.folder, "shard.pt"))
            self.rows = []
            self.shards += 1


def main():
    model = nn.Sequential(nn.Linear(96, 256), nn.ReLU(), nn.Linear(256, 96))
    optimizer = torch.optim.Adam(model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        writer = ShardWriter(folder, 9)
        for step in range(170):
            x = torch.randn(512, 96)
            y = model(x)
            loss = (y - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            writer.add(y.detach())
        print(writer.shards)


main()
