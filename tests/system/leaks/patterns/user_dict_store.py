"""A feature store derived from UserDict, keyed by running numbers."""

from collections import UserDict

import torch
from torch import nn


class FeatureStore(UserDict):
    def put_tensor(self, tensor, *, index):
        self[index] = tensor  # LEAK any FeatureStore.data


class Encoder(nn.Module):
    def __init__(self, store):
        super().__init__()
        self.store = store
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x, number):
        h = self.layers(x)
        self.store.put_tensor(h.detach().half(), index=("paper", number))
        return h


encoder = Encoder(FeatureStore())
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
for number in range(150):
    x = torch.randn(700, 64)
    loss = (encoder(x, number) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
