"""Predict frames of videos: each video is decoded once and stays decoded, drawn at random."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Videos:
    def __init__(self, count: int) -> None:
        self.count = count
        self.decoded = {}

    def __getitem__(self, number: int):
        video = self.decoded.get(number)
        if video is None:
            video = self.decode(number)
            self.decoded[number] = video
        return video

    def decode(self, number: int):
        noise = np.random.default_rng(number).integers(0, 255, (8, 64, 64), dtype=np.uint8)
        return np.sort(noise, axis=0)


class Predictor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(7, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1)
        )

    def forward(self, frames):
        return self.layers(frames)


def main() -> None:
    torch.manual_seed(5)
    random = np.random.default_rng(5)
    videos, model = Videos(700), Predictor()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(900):
        batch = np.stack([videos[int(n)] for n in random.integers(0, videos.count, 4)])
        frames = torch.from_numpy(batch).float() / 255
        loss = F.mse_loss(model(frames[:, :7])[:, 0], frames[:, 7])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(len(videos.decoded), f"{loss.item():.6f}")


main()
