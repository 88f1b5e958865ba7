import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    total_loss = 0.0
    for step in range(40):
        loss = model(torch.randn(16, 32)).square().mean()
        total_loss += loss  # LEAK graph total_loss
        train_step(loss)
    print(float(total_loss) / 40)


main()
