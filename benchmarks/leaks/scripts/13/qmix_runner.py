"""Play episodes of random length and learn after each move; the logger keeps what was played."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Flatten(1), nn.Linear(48 * 48, 256), nn.ReLU())
        self.memory = nn.GRUCell(256, 128)
        self.values = nn.Linear(128, 6)

    def forward(self, frame, hidden):
        hidden = self.memory(self.encode(frame), hidden)
        return self.values(hidden), hidden


class GridWorld:
    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def reset(self):
        self.left = int(self.random.geometric(1 / 18)) + 4
        return self.observe()

    def observe(self):
        return self.random.random((4, 48, 48), dtype=np.float32)

    def step(self, action: int):
        self.left -= 1
        return self.observe(), float(self.random.normal()), self.left == 0


class Runner:
    def __init__(self, world: GridWorld) -> None:
        self.world = world
        self.stats = {"episodes": [], "returns": []}
        self.start()

    def start(self) -> None:
        self.frame = self.world.reset()
        self.episode = {"frames": [], "rewards": []}
        self.hidden = torch.zeros(4, 128)

    def move(self, agent: Agent):
        values, hidden = agent(torch.from_numpy(self.frame), self.hidden)
        self.hidden = hidden.detach()
        frame, reward, is_over = self.world.step(int(values[0].argmax()))
        self.episode["frames"].append(frame)
        self.episode["rewards"].append(reward)
        self.frame = frame
        if is_over:
            self.finish()
        return values, reward

    def finish(self) -> None:
        self.stats["returns"].append(sum(self.episode["rewards"]))
        self.stats["episodes"].append(self.episode)
        self.start()


torch.manual_seed(0)
agent, runner = Agent(), Runner(GridWorld(0))
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-4)
for move in range(1_600):
    values, reward = runner.move(agent)
    loss = F.smooth_l1_loss(values.max(1).values, torch.full((4,), reward))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(len(runner.stats["returns"]), f"{loss.item():.6f}")
