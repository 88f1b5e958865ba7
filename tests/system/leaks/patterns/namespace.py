from types import SimpleNamespace

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


args = SimpleNamespace(lr=0.1, losses=[], inputs=[])


def step_once(args):
    batch = torch.randn(512, 128)
    loss = model(batch).square().mean()
    train_step(loss)
    args.losses.append(loss.item())
    args.inputs.append(batch)  # LEAK list args


for step in range(70):
    step_once(args)
