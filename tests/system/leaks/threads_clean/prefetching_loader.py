"""One worker that loads eight batches ahead, for several epochs."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 16 * 60

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.rand(3, 48, 48, generator=generator), index % 10


def main():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 48 * 48, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(
        Images(), 16, shuffle=True, num_workers=1, prefetch_factor=8, persistent_workers=True
    )
    for _ in range(3):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
