"""Augment batches in an executor of an event loop, which only ever hands out work."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


class Augmenter:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.pool = ThreadPoolExecutor(1)
        self.generator = torch.Generator().manual_seed(3)

    def augment(self, images: torch.Tensor, into: list) -> torch.Tensor:
        noisy = images + 0.1 * torch.randn(images.shape, generator=self.generator)
        into.append(noisy.mean().item())
        return noisy

    def start(self, images: torch.Tensor, into: list) -> None:
        self.loop.run_in_executor(self.pool, self.augment, images, into)

    def wait(self, into: list) -> float:
        self.pool.submit(int).result()
        return into[0]


def main() -> None:
    torch.manual_seed(0)
    augmenter = Augmenter()
    model = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
    model(torch.zeros(1, 3, 32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    means = 0.0
    for _ in range(500):
        images = torch.rand(32, 3, 32, 32)
        into = []
        augmenter.start(images, into)
        loss = nn.functional.cross_entropy(model(images), torch.randint(0, 10, (32,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        means += augmenter.wait(into)
    print(float(loss.detach()), means / 500)


main()
