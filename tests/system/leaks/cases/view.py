import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    firsts = []
    for step in range(40):
        output = model(torch.randn(256, 32))
        train_step(output.square().mean())
        firsts.append(output.detach()[0])  # LEAK view firsts


main()
