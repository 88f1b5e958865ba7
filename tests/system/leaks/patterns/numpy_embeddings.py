import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Index:
    def __init__(self):
        self.vectors = {}

    def add(self, key, vectors):
        self.vectors[key] = vectors  # LEAK any Index.vectors


index = Index()
for step in range(70):
    batch = torch.randn(512, 128)
    train_step(model(batch).square().mean())
    with torch.no_grad():
        index.add(f"batch{step}", model[:2](batch).numpy().reshape(-1))
