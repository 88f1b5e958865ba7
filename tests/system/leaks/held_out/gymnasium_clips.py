"""A recorder starts a new list of frames per episode, but the finished clips refer to the old ones.
https://github.com/Farama-Foundation/Gymnasium/pull/1444"""

import sys

import numpy as np
import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


class Pendulum:
    def __init__(self, length=25):
        self.length = length

    def reset(self):
        self.t = 0
        self.state = np.random.randn(3).astype(np.float32)
        return self.state

    def step(self, action):
        self.t += 1
        self.state = (0.95 * self.state + 0.05 * action).astype(np.float32)
        return self.state, -float((self.state**2).sum()), self.t >= self.length

    def render(self):
        frame = np.zeros((96, 128, 3), dtype=np.uint8)
        row, column = (np.abs(self.state[:2]) * 20).astype(int) % 90
        frame[row : row + 6, column : column + 6] = 255
        return frame


class ImageSequenceClip:
    def __init__(self, frames, fps):
        self.fps = fps
        self.make_frame = lambda t: frames[int(t * fps)]

    def write_videofile(self, name):
        self.name = name


class RecordVideo:
    def __init__(self, env):
        self.env = env
        self.recorded_frames = []
        self.written = []

    def reset(self):
        if self.recorded_frames:
            self.stop_recording()
        self.recorded_frames = []
        return self.env.reset()

    def step(self, action):
        result = self.env.step(action)
        self.recorded_frames.append(self.env.render())  # LEAK any written|recorded_frames|frames
        return result

    def stop_recording(self):
        clip = ImageSequenceClip(self.recorded_frames, fps=30)
        clip.write_videofile(f"episode-{len(self.written)}.mp4")
        self.written.append(clip)  # LEAK any written|recorded_frames|frames


actor = nn.Sequential(nn.Linear(3, 128), nn.Tanh(), nn.Linear(128, 3))
critic = nn.Sequential(nn.Linear(3, 128), nn.Tanh(), nn.Linear(128, 1))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3)
env = RecordVideo(Pendulum())
state = env.reset()
for step in range(STEPS):
    observation = torch.from_numpy(state)
    action = actor(observation)
    state, reward, done = env.step(action.detach().numpy())
    value = critic(observation)
    with torch.no_grad():
        target = reward + 0.9 * critic(torch.from_numpy(state))
    loss = (target - value).pow(2).mean() + (action * (value - target).detach()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if done:
        state = env.reset()
