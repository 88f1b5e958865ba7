import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


saved = {}


def pack(tensor):
    saved[len(saved)] = tensor  # LEAK any saved
    return len(saved) - 1


def unpack(key):
    return saved[key]


with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
    for step in range(70):
        train_step(model(torch.randn(256, 128)).square().mean())
