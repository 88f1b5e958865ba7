import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# WINDOW 220
def evaluate(data):
    with torch.no_grad():
        return {"logits": model(data), "inputs": data.clone()}


def main():
    reports = {}
    data = torch.randn(512, 128)
    for step in range(260):
        train_step(model(torch.randn(16, 128)).square().mean())
        if step % 50 == 49:
            reports[step] = evaluate(data)  # LEAK dict reports


main()
