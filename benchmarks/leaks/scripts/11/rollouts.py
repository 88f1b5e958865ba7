"""PPO-like training on many small environments; the runner gathers the rollouts."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Envs:
    def __init__(self, count: int) -> None:
        self.rng = np.random.default_rng(0)
        self.obs = np.zeros((count, 4, 42, 42), dtype=np.uint8)

    def step(self, actions):
        self.obs[:, :-1] = self.obs[:, 1:]
        self.obs[:, -1] = self.rng.integers(0, 255, self.obs[:, -1].shape, dtype=np.uint8)
        return self.obs, (actions == 1).astype(np.float32)


class Runner:
    def __init__(self, envs: Envs, model: nn.Module, horizon: int) -> None:
        self.envs = envs
        self.model = model
        self.horizon = horizon
        self.mb_obs = []
        self.mb_actions = []
        self.mb_rewards = []

    def run(self):
        for _ in range(self.horizon):
            with torch.no_grad():
                logits = self.model(torch.from_numpy(self.envs.obs).float() / 255)
            actions = torch.distributions.Categorical(logits=logits).sample().numpy()
            self.mb_obs.append(self.envs.obs.copy())
            self.mb_actions.append(actions)
            _, rewards = self.envs.step(actions)
            self.mb_rewards.append(rewards)
        recent = slice(-self.horizon, None)
        return (
            np.concatenate(self.mb_obs[recent]),
            np.concatenate(self.mb_actions[recent]),
            np.concatenate(self.mb_rewards[recent]),
        )


torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(4, 8, 8, 4), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 81, 128), nn.ReLU(), nn.Linear(128, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=2.5e-4)
runner = Runner(Envs(32), model, horizon=4)
for update in range(600):
    obs, actions, rewards = runner.run()
    logits = model(torch.from_numpy(obs).float() / 255)
    loss = (F.cross_entropy(logits, torch.from_numpy(actions), reduction="none") * torch.from_numpy(rewards)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
