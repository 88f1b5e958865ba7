"""Train a vocoder, and draw the spectrograms that it predicts in each step."""

import itertools

import numpy as np
import torch
from torch import nn


class Figure:
    def __init__(self, number: int, width: int, height: int) -> None:
        self.number = number
        self.canvas = np.zeros((height, width, 4), dtype=np.uint8)
        self.artists = []

    def image(self, values: np.ndarray) -> None:
        self.artists.append(np.interp(values, (values.min(), values.max()), (0, 255)))
        rows = min(values.shape[0], self.canvas.shape[0])
        columns = min(values.shape[1], self.canvas.shape[1])
        self.canvas[:rows, :columns, 0] = self.artists[-1][:rows, :columns]


class Pyplot:
    """Opened figures stay until they are closed."""

    figures = {}
    numbers = itertools.count(1)

    @classmethod
    def figure(cls, width: int = 320, height: int = 120) -> Figure:
        number = next(cls.numbers)
        opened = Figure(number, width, height)
        cls.figures[number] = opened
        return opened

    @classmethod
    def close(cls, number: int) -> None:
        cls.figures.pop(number, None)


def draw(spectrogram: torch.Tensor) -> float:
    figure = Pyplot.figure()
    figure.image(spectrogram.detach().numpy())
    return float(figure.canvas.mean())


torch.manual_seed(0)
model = nn.Sequential(nn.Conv1d(80, 128, 5, padding=2), nn.ReLU(), nn.Conv1d(128, 80, 5, padding=2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
brightness = 0.0
for step in range(500):
    mels = torch.rand(4, 80, 100)
    predicted = model(mels)
    loss = ((predicted - mels) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    brightness += draw(predicted[0])
print(float(loss.detach()), brightness / 500)
