import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    for i in range(40):
        w = nn.Parameter(torch.randn(64))
        optimizer.add_param_group({"params": [w]})  # LEAK optimizer optimizer
        train_step(model(torch.randn(16, 32)).pow(2).mean())


main()
