"""DQN with a replay memory of fixed size.

toshikwa/sac-discrete.pytorch#28 and MishaLaskin/curl#10 took such growth for a leak: it ends when the buffer is full.
"""
import random
from collections import deque, namedtuple

import torch
from torch import nn, optim

Transition = namedtuple("Transition", "state action reward next_state done")


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, k):
        return random.sample(self.memory, k)


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 24, 5, 2), nn.ReLU(), nn.Conv2d(24, 32, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 9 * 9, 4)
        )

    def forward(self, s):
        return self.layers(s)


def env_step(state, action):
    frame = torch.rand(1, 1, 42, 42) + 0.1 * action
    return torch.cat([state[:, 1:], frame], 1), float(action == 2) - 0.1, random.random() < 0.02


random.seed(2)
torch.manual_seed(2)
torch.set_num_threads(1)
policy, target = QNet(), QNet()
target.load_state_dict(policy.state_dict())
optimizer = optim.RMSprop(policy.parameters(), lr=1e-4)
memory = ReplayMemory(2200)
state, total = torch.rand(1, 4, 42, 42), 0.0
for t in range(4000):
    eps = max(0.05, 1 - t / 1500)
    if random.random() < eps:
        action = random.randrange(4)
    else:
        with torch.no_grad():
            action = policy(state).argmax().item()
    nxt, reward, done = env_step(state, action)
    memory.push(state, action, reward, nxt, done)
    total += reward
    state = torch.rand(1, 4, 42, 42) if done else nxt
    if t > 100 and t % 4 == 0:
        batch = Transition(*zip(*memory.sample(32)))
        s, s2 = torch.cat(batch.state), torch.cat(batch.next_state)
        a, r = torch.tensor(batch.action), torch.tensor(batch.reward)
        live = 1 - torch.tensor(batch.done).float()
        with torch.no_grad():
            goal = r + 0.99 * live * target(s2).max(1).values
        loss = nn.functional.smooth_l1_loss(policy(s).gather(1, a[:, None])[:, 0], goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if t % 500 == 499:
        target.load_state_dict(policy.state_dict())
        print(t + 1, round(total, 2), len(memory.memory))
