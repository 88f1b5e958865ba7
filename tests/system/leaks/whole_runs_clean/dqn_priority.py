"""DQN with a prioritised buffer; the buffer reaches its capacity in the middle of the run.

Replay list with a capacity reached at 45% of the run.
"""

import random

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
random.seed(0)


class PriorityBuffer:
    def __init__(self, capacity):
        self.capacity = capacity
        self.items, self.priorities = [], []
        self.next = 0

    def add(self, item, priority):
        if len(self.items) < self.capacity:
            self.items.append(item)
            self.priorities.append(priority)
        else:
            for old, new in zip(self.items[self.next], item):
                old.copy_(new)
            self.priorities[self.next] = priority
        self.next = (self.next + 1) % self.capacity

    def sample(self, n):
        index = random.choices(range(len(self.items)), self.priorities, k=n)
        batch = [torch.stack(f) for f in zip(*(self.items[i] for i in index))]
        return index, batch


def q_network():
    return nn.Sequential(
        nn.Conv2d(4, 32, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(32, 48, 3, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48 * 25, 128),
        nn.ReLU(),
        nn.Linear(128, 5),
    )


class Pong:
    def __init__(self):
        self.frames = torch.rand(4, 20, 20)

    def step(self, action):
        new = torch.roll(self.frames[-1], action - 2, 1) * 0.9 + 0.1 * torch.rand(20, 20)
        self.frames = torch.cat([self.frames[1:], new[None]])
        return self.frames.clone(), float(new[:, :3].mean() > 0.5)


online, target = q_network(), q_network()
target.load_state_dict(online.state_dict())
optimizer = torch.optim.Adam(online.parameters(), lr=3e-4)
buffer = PriorityBuffer(9_000)
worlds = [Pong() for _ in range(20)]
states = [w.frames.clone() for w in worlds]
for step in range(1, 1001):
    with torch.no_grad():
        greedy = online(torch.stack(states)).argmax(1).tolist()
    for k, world in enumerate(worlds):
        action = random.randrange(5) if random.random() < 0.2 else greedy[k]
        nxt, reward = world.step(action)
        buffer.add(
            (states[k].clone(), torch.tensor(action), torch.tensor(reward), nxt.clone()), 1.0
        )
        states[k] = nxt
    index, (s, a, r, s2) = buffer.sample(128)
    with torch.no_grad():
        goal = r + 0.97 * target(s2).amax(1)
    error = goal - online(s).gather(1, a[:, None]).squeeze(1)
    optimizer.zero_grad()
    error.pow(2).mean().backward()
    optimizer.step()
    for i, e in zip(index, error.detach().abs().tolist()):
        buffer.priorities[i] = e + 1e-3
    if step % 100 == 0:
        target.load_state_dict(online.state_dict())
        print(step, len(buffer.items), round(error.abs().mean().item(), 4))
