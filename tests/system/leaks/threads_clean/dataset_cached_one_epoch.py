"""The dataset keeps all samples in the first epoch, and reads them in the others."""

# BEGIN 24
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class CachedDataset(Dataset):
    def __init__(self, size):
        self.size, self.cache = size, {}

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = torch.randn(4096)
        return self.cache[index]


def main():
    loader = DataLoader(CachedDataset(32 * 32), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(4096, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in range(5):
        for x in loader:
            loss = (model(x).squeeze(1) - x.mean(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


main()
