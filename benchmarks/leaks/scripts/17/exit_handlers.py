"""Read pages: each document is closed at the end of the process, too, if it wasn't before."""

import atexit

import torch
from torch import nn


class Document:
    def __init__(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        self.pages = torch.rand(8, 24, 24, generator=generator)
        self.is_open = True
        atexit.register(self.close)

    def __enter__(self) -> "Document":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.is_open = False


torch.manual_seed(37)
model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(700):
    with Document(step) as document:
        pages = document.pages[:, None]
        loss = nn.functional.mse_loss(model(pages), pages.flip(3))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
