import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


from collections import deque


def main():
    replay = deque(maxlen=8)
    recent = deque(maxlen=1000)
    for step in range(40):
        batch = torch.randn(16, 32)
        replay.append(batch)
        recent.append(batch.mean())
        train_step(model(torch.cat(list(replay))).square().mean())


main()
