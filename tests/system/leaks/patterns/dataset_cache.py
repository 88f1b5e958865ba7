"""A dataset that caches each sample: https://github.com/pytorch/pytorch/issues/13246 and many others."""

from torch.utils.data import DataLoader, Dataset

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Cached(Dataset):
    def __init__(self):
        self.samples = {}

    def __len__(self):
        return 2000

    def __getitem__(self, index):
        if index not in self.samples:
            self.samples[index] = torch.randn(128, 8)  # LEAK dict Cached.samples
        return self.samples[index][:, 0]


for batch in DataLoader(Cached(), batch_size=32, shuffle=True):
    train_step(model(batch).square().mean())
