"""Statistics in one array that np.concatenate makes longer each time: a pattern of evaluation scripts."""

import numpy as np
import torch
from torch import nn


class Embeddings:
    def __init__(self, dim):
        self.matrix = np.empty((0, dim), dtype=np.float32)
        self.count = 0

    def add(self, tensor):
        self.matrix = np.concatenate([self.matrix, tensor.detach().numpy()])  # LEAK any matrix
        self.count += len(tensor)


def main():
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 128))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    embeddings = Embeddings(128)
    for step in range(150):
        output = model(torch.randn(100, 32))
        loss = output.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        embeddings.add(output)


main()
