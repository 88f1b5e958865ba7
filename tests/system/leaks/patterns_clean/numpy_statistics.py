import numpy as np

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Running:
    def __init__(self):
        self.mean = np.zeros(8)
        self.window = np.zeros((20, 8))

    def update(self, step, values):
        self.mean = 0.9 * self.mean + 0.1 * values
        self.window[step % 20] = values


running = Running()
curve = []
for step in range(70):
    output = model(torch.randn(256, 128))
    train_step(output.square().mean())
    running.update(step, output.detach().numpy().mean(0))
    curve.append(float(running.mean[0]))
