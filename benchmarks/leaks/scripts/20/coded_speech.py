"""Train a codec of speech: an encoder, levels that samples are rounded to, and a decoder."""

import math

import torch
from torch import nn


class RoundToLevels(torch.autograd.Function):
    @staticmethod
    def forward(ctx, signal: torch.Tensor, levels: int) -> torch.Tensor:
        ctx.rounded = torch.round(signal.clamp(-1, 1) * levels) / levels
        return ctx.rounded

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * (ctx.rounded.abs() < 1), None


class Codec(nn.Module):
    def __init__(self, channels: int = 16, levels: int = 8) -> None:
        super().__init__()
        self.levels = levels
        self.encoder = nn.Sequential(
            nn.Conv1d(1, channels, 9, stride=4, padding=4),
            nn.ELU(),
            nn.Conv1d(channels, channels, 9, stride=4, padding=4),
            nn.Tanh(),
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose1d(channels, channels, 8, stride=4, padding=2),
            nn.ELU(),
            nn.ConvTranspose1d(channels, 1, 8, stride=4, padding=2),
        )

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        return self.decoder(RoundToLevels.apply(self.encoder(waves), self.levels))


def draw_waves(count: int, length: int = 1024) -> torch.Tensor:
    pitches = 80 + 220 * torch.rand(count, 1, 1)
    times = torch.arange(length) / 8000
    phases = 2 * math.pi * pitches * times
    return 0.6 * torch.sin(phases) + 0.3 * torch.sin(2 * phases) + 0.02 * torch.randn(phases.shape)


def spectral_loss(decoded: torch.Tensor, waves: torch.Tensor, size: int = 128) -> torch.Tensor:
    window = torch.hann_window(size)
    spectra = [
        torch.stft(wave.squeeze(1), size, window=window, return_complex=True).abs()
        for wave in (decoded, waves)
    ]
    return nn.functional.l1_loss(*spectra)


torch.manual_seed(201)
codec = Codec()
optimizer = torch.optim.AdamW(codec.parameters(), lr=2e-3)
for _step in range(400):
    waves = draw_waves(16)
    decoded = codec(waves)
    loss = nn.functional.mse_loss(decoded, waves) + 0.1 * spectral_loss(decoded, waves)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
