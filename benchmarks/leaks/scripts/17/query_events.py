"""Answer events of a queue: an event leaves the queue, but not the tables of its session."""

import collections
import random

import torch
from torch import nn


class Event:
    def __init__(self, key: str, data: torch.Tensor) -> None:
        self.key = key
        self.data = data
        self.is_done = False


class Queue:
    def __init__(self) -> None:
        self.waiting = collections.deque()
        self.events = {}
        self.pending = collections.defaultdict(set)

    def push(self, session: str, event: Event) -> None:
        self.events[event.key] = event
        self.pending[session].add(event.key)
        self.waiting.append((session, event))

    def process(self) -> torch.Tensor:
        session, event = self.waiting.popleft()
        event.is_done = True
        self.pending[session].discard(event.key)
        return event.data


torch.manual_seed(43)
draw = random.Random(43)
queue = Queue()
model = nn.Sequential(nn.Linear(96, 64), nn.Tanh(), nn.Linear(64, 96))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _step in range(600):
    for _ in range(2):
        event = Event(f"{draw.getrandbits(64):016x}", torch.randn(64, 96))
        queue.push(f"session {draw.randrange(9)}", event)
    data = torch.cat([queue.process(), queue.process()])
    loss = nn.functional.mse_loss(model(data), data)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
