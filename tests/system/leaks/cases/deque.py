import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


from collections import deque


class Replay:
    def __init__(self):
        self.frames = deque()

    def add(self, frame):
        self.frames.append(frame)  # LEAK deque Replay.frames


def main():
    replay = Replay()
    for step in range(40):
        batch = torch.randn(16, 32)
        replay.add(batch)
        train_step(model(batch).square().mean())


main()
