"""The clips of a recorder keep the frames of each video.

As in https://github.com/Farama-Foundation/Gymnasium/pull/1444.
"""

import torch
from torch import nn


class Clip:
    def __init__(self, frames, fps):
        self.fps = fps
        self.frames = frames
        self.make_frame = lambda t: frames[int(t * fps)]

    def write(self):
        return len(self.frames) / self.fps


class RecordVideo:
    def __init__(self, environment, length):
        self.environment, self.length = environment, length
        self.recorded_frames, self.videos = [], []

    def step(self, action):
        result = self.environment.step(action)
        self.recorded_frames.append(self.environment.render())
        if len(self.recorded_frames) >= self.length:
            self.stop_recording()
        return result

    def stop_recording(self):
        clip = Clip(self.recorded_frames, fps=10)
        clip.write()
        self.videos.append(clip)  # LEAK any videos
        self.recorded_frames = []


class Environment:
    def __init__(self):
        self.state = torch.zeros(4)

    def step(self, action):
        self.state = self.state * 0.9 + action
        return self.state, float(self.state.square().mean())

    def render(self):
        import numpy

        return numpy.full((40, 60, 3), int(self.state[0] * 10) % 255, dtype=numpy.uint8)


def main():
    environment = RecordVideo(Environment(), length=4)
    policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    state = torch.randn(4)
    for step in range(200):
        action = policy(state.detach())
        state, reward = environment.step(action.detach() + 0.1 * torch.randn(4))
        loss = (action - state).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
