"""Images become larger at milestones, one of them in the middle of the search."""

import torch
from torch import nn

SIZES = {0: 16, 12: 24, 60: 32, 110: 48}


def size_at(step):
    return SIZES[max(start for start in SIZES if start <= step)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
        )
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


def main():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for step in range(150):
        size = size_at(step)
        loss = nn.functional.cross_entropy(
            net(torch.randn(16, 3, size, size)), torch.randint(0, 10, (16,))
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
