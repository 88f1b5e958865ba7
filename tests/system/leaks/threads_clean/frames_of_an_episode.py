"""Frames of one episode, freed when its video is written.

As in https://github.com/Farama-Foundation/Gymnasium/pull/1378.
"""

import numpy
import torch
from torch import nn


class Recorder:
    def __init__(self):
        self.frames, self.written = [], 0

    def capture(self, value):
        self.frames.append(numpy.full((30, 40, 3), int(value) % 255, dtype=numpy.uint8))

    def close(self):
        self.written += sum(len(frame.tobytes()) for frame in self.frames)
        self.frames = []


recorder = Recorder()
policy = nn.Linear(8, 8)
optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
for step in range(120):
    x = torch.randn(8, 8)
    loss = (policy(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    recorder.capture(100 * loss.item())
    if step % 7 == 6:
        recorder.close()
print(recorder.written)
