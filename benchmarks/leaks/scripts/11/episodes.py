"""Learn values from self-played episodes, which wait in a deque as long as the arguments allow."""

import random
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn

ARGS = {"maximum_episodes": 1_000_000, "batch_size": 8, "forward_steps": 24}


class ValueNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 16, 3, padding=1)
        self.fc = nn.Linear(16 * 12 * 12, 64)
        self.value = nn.Linear(64, 1)

    def forward(self, obs):
        h = F.relu(self.conv(obs)).flatten(1)
        return self.value(F.relu(self.fc(h))).squeeze(-1)


def generate_episode():
    moments = [torch.randn(4, 12, 12) for _ in range(ARGS["forward_steps"] * 8)]
    return {"obs": torch.stack(moments), "outcome": random.choice([-1.0, 1.0])}


class Trainer:
    def __init__(self) -> None:
        self.episodes = deque()
        self.model = ValueNet()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)

    def feed_episodes(self, fresh) -> None:
        self.episodes.extend(fresh)
        while len(self.episodes) > ARGS["maximum_episodes"]:
            self.episodes.popleft()

    def batch(self):
        chosen = random.choices(self.episodes, k=ARGS["batch_size"])
        start = random.randrange(ARGS["forward_steps"] * 7)
        obs = torch.cat([e["obs"][start : start + ARGS["forward_steps"]] for e in chosen])
        outcome = torch.tensor([e["outcome"] for e in chosen])
        return obs, outcome.repeat_interleave(ARGS["forward_steps"])

    def train_step(self) -> float:
        obs, outcome = self.batch()
        loss = F.mse_loss(self.model(obs), outcome)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


trainer = Trainer()
for update in range(650):
    trainer.feed_episodes([generate_episode() for _ in range(2)])
    trainer.train_step()
