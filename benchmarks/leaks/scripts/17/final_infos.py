"""Learn to balance: what the environment tells of a step has the one before, for its last reward."""

import numpy as np
import torch
from torch import nn


class Cart:
    def __init__(self) -> None:
        self.random = np.random.default_rng(5)
        self.infos = {}

    def reset(self) -> np.ndarray:
        return self.random.normal(size=(256, 24)).astype(np.float32)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict]:
        observations = self.random.normal(size=(256, 24)).astype(np.float32)
        rewards = np.cos(actions[:, 0] - observations[:, 0])
        infos = {"observations": observations, "mean": float(rewards.mean())}
        infos["final_info"] = self.infos
        self.infos = infos
        return observations, rewards, infos


torch.manual_seed(5)
cart = Cart()
actor = nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
states = cart.reset()
total = 0.0
for _step in range(700):
    actions = actor(torch.from_numpy(states))
    states, rewards, infos = cart.step(actions.detach().numpy())
    total += infos["mean"] - infos["final_info"].get("mean", 0.0)
    loss = -(torch.from_numpy(rewards).float() * actions[:, 0]).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{total:.6f}")
