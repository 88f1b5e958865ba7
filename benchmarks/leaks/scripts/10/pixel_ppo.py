"""A small PPO on a moving-dot environment with stacked frames.

The reports of growing RAM in RL code that keep episode infos: XuGW-Kevin/DrM#3, thu-ml/tianshou#225.
"""
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn as nn

rng = np.random.default_rng(11)
torch.manual_seed(11)
torch.set_num_threads(1)


class DotEnv:
    """One dot on 48 x 48 pixels; three actions."""

    def __init__(self, horizon):
        self.horizon = horizon

    def reset(self):
        self.t, self.x = 0, 24
        return self._frame()

    def _frame(self):
        img = rng.integers(0, 30, (48, 48), dtype=np.uint8)
        img[20:28, max(self.x - 3, 0) : self.x + 3] = 255
        return img

    def step(self, action):
        self.t += 1
        self.x = int(np.clip(self.x + (action - 1) * 4 + rng.integers(-2, 3), 0, 47))
        return self._frame(), -abs(self.x - 24) / 24, self.t >= self.horizon


@dataclass
class EpisodeStats:
    returns: list = field(default_factory=list)
    final_frames: list = field(default_factory=list)  # for the contact sheet at the end

    def finish(self, rewards, frames):
        self.returns.append(float(np.sum(rewards)))
        self.final_frames.append(frames[-1])


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.Flatten())
        self.pi, self.v = nn.Linear(32 * 10 * 10, 3), nn.Linear(32 * 10 * 10, 1)

    def forward(self, obs):
        h = self.body(obs[:, None].float() / 255)
        return torch.distributions.Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def rollout(env, net):
    frames, actions, rewards, obs, done = [], [], [], env.reset(), False
    while not done:
        with torch.no_grad():
            dist, _ = net(torch.from_numpy(obs)[None])
        frames.append(obs)
        actions.append(dist.sample().item())
        obs, reward, done = env.step(actions[-1])
        rewards.append(reward)
    return np.stack(frames), np.array(actions), np.array(rewards, dtype=np.float32)


env, net, stats = DotEnv(horizon=128), ActorCritic(), EpisodeStats()
opt = torch.optim.Adam(net.parameters(), lr=3e-4)
for episode in range(220):
    frames, actions, rewards = rollout(env, net)
    stats.finish(rewards, frames)
    ret = torch.from_numpy(rewards[::-1].cumsum()[::-1].copy())
    x, a = torch.from_numpy(frames), torch.from_numpy(actions)
    old = None
    for _ in range(2):
        dist, value = net(x)
        logp, adv = dist.log_prob(a), (ret - value).detach()
        old = logp.detach() if old is None else old
        ratio = (logp - old).exp()
        loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean() + 0.5 * (ret - value).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    if episode % 40 == 0:
        print(f"episode {episode}: mean return {np.mean(stats.returns[-40:]):.2f}")
print("sheet", np.stack(stats.final_frames).shape)
