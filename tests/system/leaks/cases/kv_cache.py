import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class DynamicCache:
    def __init__(self, layers):
        self.keys = [None] * layers
        self.values = [None] * layers

    def update(self, layer, key, value):
        if self.keys[layer] is None:
            self.keys[layer], self.values[layer] = key, value
        else:
            self.keys[layer] = torch.cat(  # LEAK any DynamicCache.keys
                [self.keys[layer], key], dim=-2
            )
            self.values[layer] = torch.cat([self.values[layer], value], dim=-2)
        return self.keys[layer], self.values[layer]


cache = DynamicCache(2)
for step in range(60):
    x = torch.randn(16, 128)
    for layer in range(2):
        cache.update(layer, x.detach()[None], x.detach()[None, :, :8])
    train_step(model(x).square().mean())
