import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


import copy


def main():
    average = copy.deepcopy(model)
    running = torch.zeros(())
    for step in range(40):
        loss = model(torch.randn(16, 32)).square().mean()
        train_step(loss)
        running = 0.9 * running + 0.1 * loss.detach()
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters()):
                kept.lerp_(new, 0.01)
    return average, running


main()
