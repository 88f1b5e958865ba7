#!/usr/bin/env python
"""Keyword spotting on synthetic audio.

MoonshotAI/Kimi-Audio#117: @lru_cache(maxsize=None) on a dataset's method.
"""
import functools
import math
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Keywords(Dataset):
    def __init__(self, n=400, rate=8000):
        gen = torch.Generator().manual_seed(5)
        self.pitch = torch.randint(2, 12, (n,), generator=gen) * 110.0
        self.rate = rate
        self.window = torch.hann_window(256)

    def __len__(self):
        return len(self.pitch)

    @functools.lru_cache(maxsize=None)
    def spectrogram(self, index, gain, shift):
        t = torch.arange(self.rate) / self.rate
        wave = gain * torch.sin(2 * math.pi * self.pitch[index] * (t + shift))
        spec = torch.stft(wave, 256, hop_length=64, window=self.window, return_complex=True)
        return spec.abs().clamp(min=1e-5).log()

    def __getitem__(self, index):
        gain = round(random.uniform(0.5, 1.5), 4)
        shift = round(random.uniform(0.0, 0.2), 4)
        return self.spectrogram(index, gain, shift), int(self.pitch[index] // 110) - 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(129, 96, 5, stride=2), nn.ReLU(), nn.Conv1d(96, 96, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1)
        )
        self.fc = nn.Linear(96, 10)

    def forward(self, x):
        return self.fc(self.conv(x).flatten(1))


if __name__ == "__main__":
    random.seed(1)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    loader = DataLoader(Keywords(), batch_size=8, shuffle=True, drop_last=True)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(13):
        total = 0.0
        for spec, label in loader:
            loss = nn.functional.cross_entropy(net(spec), label)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        print(f"epoch {epoch}: {total / len(loader):.4f}")
