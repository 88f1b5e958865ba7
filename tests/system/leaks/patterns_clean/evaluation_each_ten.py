import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def evaluate(data):
    outputs = []
    with torch.no_grad():
        for batch in data:
            outputs.append(model(batch))
    return torch.cat(outputs).mean().item()


data = [torch.randn(256, 128) for _ in range(10)]
scores = {}
for step in range(70):
    train_step(model(torch.randn(64, 128)).square().mean())
    if step % 10 == 3:
        scores[step] = evaluate(data)
