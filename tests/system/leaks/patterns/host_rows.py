import numpy as np

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Table:
    def __init__(self):
        self.rows = []

    def write(self, **row):
        self.rows.append(row)  # LEAK any Table.rows


table = Table()
for step in range(70):
    output = model(torch.randn(512, 128))
    loss = output.square().mean()
    train_step(loss)
    table.write(step=step, loss=loss.item(), probabilities=np.asarray(output.softmax(1).tolist()))
