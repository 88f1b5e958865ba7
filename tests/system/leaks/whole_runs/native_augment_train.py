"""Image classifier with augmentation in native code.

As in: numpy/numpy#6511; myhub/tr#18.
"""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from native_augment_train_lib import native_aug


class SmallConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 48, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(48, 10)

    def forward(self, x):
        return self.head(self.body(x))


class Pictures:
    def __init__(self, count=1500, seed=0):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 10, count)
        self.pictures = rng.standard_normal((count, 3, 32, 32)).astype(np.float32) * 0.3
        for i, label in enumerate(self.labels):
            self.pictures[i, :, label * 3 : label * 3 + 3] += 1

    def batches(self, size, rng):
        while True:
            order = rng.permutation(len(self.labels))
            for start in range(0, len(order) - size, size):
                chosen = order[start : start + size]
                yield self.pictures[chosen], self.labels[chosen]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    model = SmallConv()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step, (pictures, labels) in zip(range(args.steps), Pictures().batches(args.batch, rng)):
        x = torch.from_numpy(native_aug.jitter(pictures, 0.2, rng))
        loss = F.cross_entropy(model(x), torch.from_numpy(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
