import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


optimizer = torch.optim.AdamW(model.parameters())


def main():
    lengths = torch.Generator().manual_seed(1)
    for step in range(60):
        rows = int(torch.randint(1, 64, (), generator=lengths))
        output = model(torch.randn(rows, 32))
        train_step(output.square().mean())


main()
