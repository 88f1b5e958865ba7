import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Queue(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("keys", torch.randn(size, 64))
        self.pointer = 0

    def enqueue(self, keys):
        self.keys[self.pointer : self.pointer + len(keys)] = keys.detach()
        self.pointer = (self.pointer + len(keys)) % len(self.keys)


queue = Queue(1024)
for step in range(70):
    features = model[:2](torch.randn(64, 128))
    loss = (features @ queue.keys.clone().T).square().mean()
    train_step(loss)
    queue.enqueue(features)
