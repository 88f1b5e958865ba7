import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Registry:
    _instance = None

    def __new__(cls):
        if cls._instance is None:
            cls._instance = super().__new__(cls)
            cls._instance.tensors = {}
        return cls._instance

    def register(self, tensor):
        self.tensors[id(tensor)] = tensor  # LEAK dict Registry.tensors


for step in range(70):
    batch = torch.randn(512, 128)
    Registry().register(batch)
    train_step(model(batch).square().mean())
