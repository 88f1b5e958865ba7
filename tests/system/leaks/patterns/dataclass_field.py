from dataclasses import dataclass, field

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@dataclass
class TrainState:
    step: int = 0
    best: float = float("inf")
    outputs: list = field(default_factory=list)


def run_epoch(state, loader):
    for batch in loader:
        output = model(batch)
        loss = output.square().mean()
        train_step(loss)
        state.step += 1
        state.outputs.append(output)  # LEAK list TrainState.outputs


state = TrainState()
for epoch in range(7):
    run_epoch(state, (torch.randn(512, 128) for _ in range(10)))
