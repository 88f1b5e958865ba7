# Thread: pyg-team/pytorch_geometric#3396 "Memory leak in Collater when num_workers > 0" (shared memory).
# Pattern: the collate function copies each batch into an anonymous mmap so that other processes could read
# it, and keeps the mmap "until everybody has read it"; nobody acknowledges.
# Expected: the append to `self.segments`, holder `segments`.
import mmap

import memagent
import numpy as np
import torch
from torch import nn


class SharedCollater:
    def __init__(self):
        self.segments = []
        self.readers = 0

    def __call__(self, batch):
        stacked = np.stack([item[0] for item in batch])
        segment = mmap.mmap(-1, stacked.nbytes)  # ALLOCATES
        shared = np.frombuffer(segment, dtype=np.float32).reshape(stacked.shape)
        shared[:] = stacked
        self.segments.append(segment)  # LEAK any segments
        return torch.from_numpy(shared), torch.tensor([item[1] for item in batch])

    def acknowledge(self, segment):
        self.segments.remove(segment)


class PointClouds(torch.utils.data.Dataset):
    def __len__(self):
        return 16 * 700

    def __getitem__(self, index):
        return np.random.rand(512, 3).astype(np.float32), index % 6


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 64))
        self.out = nn.Linear(64, 6)

    def forward(self, x):
        return self.out(self.local(x).amax(1))


def main():
    collate = SharedCollater()
    loader = torch.utils.data.DataLoader(PointClouds(), batch_size=16, collate_fn=collate)
    model = PointNet()
    optimizer = torch.optim.Adam(model.parameters())
    memagent.attach(model, optimizer)
    for points, labels in loader:
        loss = nn.functional.cross_entropy(model(points), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
