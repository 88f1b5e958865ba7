"""Dataset that decodes JPEG pictures with Pillow and remembers what it showed.

As in: python-pillow/Pillow#7961; mindee/doctr#1598.
"""

import argparse
import io
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset


def encode(seed, size=64):
    rng = np.random.default_rng(seed)
    pixels = (rng.random((size, size, 3)) * 80).astype(np.uint8)
    label = seed % 8
    pixels[label * 8 : label * 8 + 8] += 150
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="JPEG", quality=90)
    return buffer.getvalue(), label


class Jpegs(Dataset):
    """Random crops; `history` lets the notebook show the last crops of a picture."""

    def __init__(self, count=400, crop=56):
        self.files = [encode(seed) for seed in range(count)]
        self.crop = crop
        self.history = {}

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        data, label = self.files[index % len(self.files)]
        picture = Image.open(io.BytesIO(data)).convert("RGB")
        left, top = random.randrange(64 - self.crop), random.randrange(64 - self.crop)
        crop = picture.crop((left, top, left + self.crop, top + self.crop))
        self.history.setdefault(label, {})[index] = crop  # LEAK any history
        array = np.asarray(crop, dtype=np.float32) / 255
        return torch.from_numpy(array).permute(2, 0, 1).contiguous(), label


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 12, 5, stride=2)
        self.conv2 = nn.Conv2d(12, 24, 3, stride=2)
        self.head = nn.Linear(24 * 4, 8)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return self.head(F.adaptive_avg_pool2d(x, (4, 1)).flatten(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    args = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Jpegs(), batch_size=20, shuffle=True, num_workers=0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, (x, y) in zip(range(args.steps), loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
