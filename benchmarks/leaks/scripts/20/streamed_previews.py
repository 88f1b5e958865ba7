"""Train a model that cleans noisy sound; what it made of each batch is streamed to a listener."""

import io
import math
import zlib

import torch
from torch import nn


class Stream:
    """A file that's written at its end, and read from where the last read ended."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._position = 0

    def write(self, samples: torch.Tensor) -> None:
        self._buffer.seek(0, io.SEEK_END)
        self._buffer.write((samples.clamp(-1, 1) * 32767).to(torch.int16).numpy().tobytes())

    def read(self) -> bytes:
        self._buffer.seek(self._position)
        chunk = self._buffer.read()
        self._position = self._buffer.tell()
        return chunk


class Listener:
    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.received = 0
        self.checksum = 0

    def poll(self) -> None:
        chunk = self.stream.read()
        self.received += len(chunk)
        self.checksum = zlib.crc32(chunk, self.checksum)


class Cleaner(nn.Module):
    def __init__(self, channels: int = 12) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, channels, 15, padding=7),
            nn.LeakyReLU(0.1),
            nn.Conv1d(channels, 1, 15, padding=7),
        )

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        return waves + self.layers(waves)


def draw_waves(count: int, length: int) -> torch.Tensor:
    pitches = 100 + 300 * torch.rand(count, 1, 1)
    return 0.7 * torch.sin(2 * math.pi * pitches * torch.arange(length) / 8000)


torch.manual_seed(213)
cleaner = Cleaner()
optimizer = torch.optim.Adam(cleaner.parameters(), lr=2e-3)
stream = Stream()
listener = Listener(stream)
for _step in range(400):
    waves = draw_waves(24, length=1200)
    cleaned = cleaner(waves + 0.2 * torch.randn_like(waves))
    loss = nn.functional.mse_loss(cleaned, waves)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    stream.write(cleaned.detach())
    listener.poll()
print(f"{loss.item():.6f} {listener.received}")
