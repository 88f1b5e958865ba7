"""Train a controller, and record every tenth episode as a short film of its pictures."""

import numpy as np
import torch
from torch import nn


class Recorder:
    def __init__(self, every: int, size: int = 96) -> None:
        self.every = every
        self.grid = np.mgrid[:size, :size].astype(np.float32) / size - 0.5
        self.frames = []
        self.start = 0
        self.is_recording = False
        self.motion = 0.0

    def begin(self, episode: int) -> None:
        self.is_recording = episode % self.every == 0
        self.start = len(self.frames)

    def capture(self, state: np.ndarray) -> None:
        if self.is_recording:
            distance = np.hypot(self.grid[0] - state[0] / 4, self.grid[1] - state[1] / 4)
            picture = np.exp(-40 * distance**2)[..., None] * np.array([255, 160, 40])
            self.frames.append(picture.astype(np.uint8))

    def end(self) -> None:
        film = np.stack(self.frames[self.start :]) if self.is_recording else np.zeros((2, 1))
        self.motion += float(np.abs(np.diff(film.astype(np.float32), axis=0)).mean())
        self.is_recording = False


torch.manual_seed(47)
recorder = Recorder(every=10)
policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
for episode in range(400):
    recorder.begin(episode)
    state, cost = torch.randn(4) / 2, 0.0
    for _time in range(12):
        state = torch.cat([state[:2] + 0.2 * state[2:], state[2:] + 0.2 * policy(state)])
        cost = cost + state.square().sum()
        recorder.capture(state.detach().numpy())
    recorder.end()
    optimizer.zero_grad()
    cost.backward()
    optimizer.step()
print(f"{float(cost.detach()):.6f} {recorder.motion:.4f}")
