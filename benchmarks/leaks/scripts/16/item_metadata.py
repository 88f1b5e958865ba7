"""Recognize speech commands: the audio of an item is added to its metadata when it is read."""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Commands(Dataset):
    def __init__(self, count: int) -> None:
        draw = random.Random(17)
        self.metadata = {
            f"clip-{number:05d}.wav": {"label": draw.randrange(10), "speaker": draw.randrange(99)}
            for number in range(count)
        }
        self.names = list(self.metadata)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        name = self.names[index]
        item = self.metadata[name]
        noise = np.random.default_rng(index).integers(-999, 999, 1600, np.int16)
        item["audio"] = {"path": name, "bytes": noise.tobytes()}
        samples = np.frombuffer(item["audio"]["bytes"], np.int16).astype(np.float32) / 999
        return torch.from_numpy(samples), item["label"]


torch.manual_seed(17)
loader = DataLoader(Commands(600 * 32), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(1600, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for clips, labels in loader:
    loss = nn.functional.cross_entropy(model(clips), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
