# Thread: pytorch/vision transforms used with `dataset.transform = Compose([dataset.transform, ...])` in
# the epoch loop (seen in many repositories; mmdetection#6931 on growing pipelines).
# Pattern: at the begin of each epoch (16 steps) the transform is wrapped in a new Compose with a noise
# bank of its own; older ones stay inside.
# Expected: the assignment to `dataset.transform`, holder `transform`/`transforms`.
import memagent
import torch
from torch import nn


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, x):
        for t in self.transforms:
            x = t(x)
        return x


class RandomFlip:
    def __call__(self, x):
        return x.flip(-1) if torch.rand(1) < 0.5 else x


class NoiseBank:
    def __init__(self, strength):
        self.bank = torch.randn(24, 3, 32, 32) * strength  # ALLOCATES

    def __call__(self, x):
        return x + self.bank[torch.randint(0, len(self.bank), (1,)).item()]


class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.transform = RandomFlip()

    def __len__(self):
        return 128

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return self.transform(torch.rand(3, 32, 32, generator=generator)), index % 10


def main():
    dataset = Images()
    model = nn.Sequential(nn.Conv2d(3, 8, 5, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
    model(torch.rand(1, 3, 32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    memagent.attach(model, optimizer)
    for epoch in range(80):
        dataset.transform = Compose([dataset.transform, NoiseBank(0.01)])  # LEAK any transform
        loader = torch.utils.data.DataLoader(dataset, batch_size=8, shuffle=True)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


main()
