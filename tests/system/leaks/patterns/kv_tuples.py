import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def generate(past, token):
    if past is None:
        return [(token, token) for _ in range(3)]
    return [
        (torch.cat([key, token], dim=1), torch.cat([value, token], dim=1)) for key, value in past
    ]


def main():
    past = None
    for step in range(60):
        token = torch.randn(4, 8, 128)
        past = generate(past, token)  # LEAK any past
        train_step(model(past[0][0][:, -8:]).square().mean())


main()
