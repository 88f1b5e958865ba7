# Thread: open-mmlab/mmdetection#7786 "Severe memory leaks when num_workers != 0" (RAM grows in workers).
# Pattern: the augmentation pipeline keeps the parameters and masks of each call for `replay`; in a
# DataLoader with two persistent workers each copy grows in its process.
# Expected: the append in ReplayCompose.__call__, holder `history`.
import memagent
import numpy as np
import torch
from torch import nn


class RandomErase:
    def parameters(self, shape, rng):
        mask = np.ones(shape[-2:], dtype=np.float32)  # ALLOCATES
        top, left = rng.integers(0, shape[-2] - 8), rng.integers(0, shape[-1] - 8)
        mask[top : top + 8, left : left + 8] = 0
        return mask

    def apply(self, image, mask):
        return image * mask


class ReplayCompose:
    def __init__(self, transforms):
        self.transforms = transforms
        self.history = []

    def __call__(self, image, rng):
        applied = []
        for transform in self.transforms:
            parameters = transform.parameters(image.shape, rng)
            image = transform.apply(image, parameters)
            applied.append((type(transform).__name__, parameters))
        self.history.append(applied)  # LEAK any history
        return image


class CocoLike(torch.utils.data.Dataset):
    def __init__(self, pipeline, n):
        self.pipeline, self.n = pipeline, n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        image = rng.random((3, 64, 64), dtype=np.float32)
        return torch.from_numpy(self.pipeline(image, rng)), index % 4


def main():
    dataset = CocoLike(ReplayCompose([RandomErase(), RandomErase()]), 8 * 600)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=8, num_workers=2, persistent_workers=True
    )
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, 2),
        nn.ReLU(),
        nn.Conv2d(16, 16, 5, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(4),
    )
    model(torch.zeros(1, 3, 64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    memagent.attach(model, optimizer)
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
