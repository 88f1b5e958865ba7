import numpy as np

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Video:
    def __init__(self):
        self.frames = []

    def render(self, seed):
        frame = np.random.default_rng(seed).integers(0, 255, (128, 128, 3), dtype=np.uint8)
        self.frames.append(frame)  # LEAK any Video.frames
        return frame


video = Video()
for step in range(70):
    frame = video.render(step)
    train_step(model(torch.from_numpy(frame[:, :, 0]).float() / 255).square().mean())
