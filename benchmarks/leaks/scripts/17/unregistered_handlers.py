"""Read pages: documents are closed at the end of the process or of their volume of 80."""

import atexit

import torch
from torch import nn


class Document:
    def __init__(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        self.pages = torch.rand(8, 24, 24, generator=generator)
        atexit.register(self.close)

    def close(self) -> None:
        atexit.unregister(self.close)
        self.pages = None


class Volume:
    def __init__(self) -> None:
        self.documents = []

    def open(self, number: int) -> Document:
        document = Document(number)
        self.documents.append(document)
        return document

    def close(self) -> None:
        while self.documents:
            self.documents.pop().close()


torch.manual_seed(79)
volume = Volume()
model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(700):
    pages = volume.open(step).pages[:, None]
    loss = nn.functional.mse_loss(model(pages), pages.flip(3))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 80 == 79:
        volume.close()
print(f"{loss.item():.6f}")
