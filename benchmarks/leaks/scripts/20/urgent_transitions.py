"""Learn values from a replay memory of 300 transitions, in which the most surprising come first."""

import heapq
import itertools

import numpy as np
import torch
from torch import nn


class Replay:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.transitions = {}
        self.versions = {}
        self.queue = []
        self.clock = itertools.count()

    def add(self, number: int, transition: tuple[np.ndarray, float, np.ndarray]) -> None:
        self.transitions[number] = transition
        self.prioritize(number, 10.0)
        while len(self.transitions) > self.capacity:
            oldest = next(iter(self.transitions))
            del self.transitions[oldest], self.versions[oldest]

    def prioritize(self, number: int, priority: float) -> None:
        version = next(self.clock)
        self.versions[number] = version
        heapq.heappush(self.queue, (-priority, version, number, self.transitions[number]))

    def take(self, count: int) -> list[tuple[int, tuple[np.ndarray, float, np.ndarray]]]:
        taken = []
        while len(taken) < count:
            _, version, number, transition = heapq.heappop(self.queue)
            if self.versions.get(number) == version:
                taken.append((number, transition))
        return taken


class Track:
    def __init__(self, seed: int) -> None:
        self.noise = np.random.default_rng(seed)
        self.view = self.noise.normal(size=768).astype(np.float32)

    def drive(self) -> tuple[np.ndarray, float, np.ndarray]:
        before = self.view
        after = 0.9 * before + 0.4 * self.noise.normal(size=768)
        self.view = after.astype(np.float32)
        return before, float(np.tanh(before[:16].sum())), self.view


torch.manual_seed(203)
values = nn.Sequential(nn.Linear(768, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(values.parameters(), lr=1e-3)
replay = Replay(capacity=300)
tracks = [Track(seed) for seed in range(12)]
numbers = itertools.count()
for track in tracks * 20:
    replay.add(next(numbers), track.drive())
for _step in range(500):
    for track in tracks:
        replay.add(next(numbers), track.drive())
    taken = replay.take(16)
    before, rewards, after = zip(*(transition for _, transition in taken), strict=True)
    with torch.no_grad():
        targets = torch.tensor(rewards) + 0.9 * values(torch.from_numpy(np.stack(after)))[:, 0]
    errors = values(torch.from_numpy(np.stack(before)))[:, 0] - targets
    loss = nn.functional.huber_loss(errors, torch.zeros_like(errors))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for (number, _), error in zip(taken, errors.abs().tolist(), strict=True):
        replay.prioritize(number, error)
print(f"{loss.item():.6f} {len(replay.transitions)}")
