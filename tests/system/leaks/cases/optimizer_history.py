import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    for step in range(70):
        train_step(model(torch.randn(64, 128)).square().mean())
        for parameter in model.parameters():
            state = optimizer.state[parameter]
            history = state.setdefault("averages", [])
            history.append(parameter.detach().clone())  # LEAK any averages


main()
