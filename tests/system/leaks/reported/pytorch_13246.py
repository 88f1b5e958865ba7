"""Told in https://github.com/pytorch/pytorch/issues/13246: workers that read a long Python list copy its pages one by one."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


from torch.utils.data import DataLoader, Dataset


class Files(Dataset):
    def __init__(self):
        numbers = range(400_000)
        self.paths = [f"/images/{i:012d}.jpeg" for i in numbers]  # LEAK copy_on_write Files.paths

    def __len__(self):
        return 64 * 60

    def __getitem__(self, index):
        touched = self.paths[index * 100 : index * 100 + 100]
        return torch.full((32,), float(len(touched[0])))


for batch in DataLoader(Files(), batch_size=64, num_workers=1, multiprocessing_context="fork"):
    train_step(model(batch).mean())
