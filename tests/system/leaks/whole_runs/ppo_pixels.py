"""As in: Unity-Technologies/ml-agents#2722, #3422."""

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

N_ENVS = 32
HORIZON = 8
ITERATIONS = 450
GAMMA = 0.99
CLIP = 0.2

torch.set_num_threads(1)
rng = np.random.default_rng(1)


class Catcher:
    """A falling block and a paddle, drawn in three 16x16 planes."""

    def __init__(self, n):
        self.n = n
        self.block = np.stack([np.zeros(n, int), rng.integers(0, 16, n)], 1)
        self.paddle = np.full(n, 8)

    def observe(self):
        frame = np.zeros((self.n, 3, 16, 16), np.float32)
        i = np.arange(self.n)
        frame[i, 0, self.block[:, 0], self.block[:, 1]] = 1
        frame[i, 1, 15, self.paddle] = 1
        frame[:, 2] = rng.standard_normal((self.n, 16, 16)) * 0.05
        return torch.from_numpy(frame)

    def step(self, action):
        self.paddle = np.clip(self.paddle + action - 1, 0, 15)
        self.block[:, 0] += 1
        landed = self.block[:, 0] >= 15
        reward = np.where(landed, (np.abs(self.block[:, 1] - self.paddle) < 2) * 2.0 - 1.0, 0.0)
        self.block[landed] = np.stack(
            [np.zeros(landed.sum(), int), rng.integers(0, 16, landed.sum())], 1
        )
        return self.observe(), reward.astype(np.float32), landed


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(1024, 128),
            nn.ReLU(),
        )
        self.pi, self.v = nn.Linear(128, 3), nn.Linear(128, 1)

    def forward(self, x):
        h = self.body(x)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


class Memory:
    def __init__(self):
        self.obs, self.actions, self.logprobs = [], [], []
        self.rewards, self.dones, self.values = [], [], []

    def push(self, obs, action, logprob, reward, done, value):
        self.obs.append(obs)  # LEAK any obs|Memory
        self.actions.append(action)
        self.logprobs.append(logprob)
        self.rewards.append(reward)
        self.dones.append(done)
        self.values.append(value)

    def last(self, n):
        return [
            torch.stack(f[-n:])
            for f in (self.obs, self.actions, self.logprobs, self.rewards, self.dones, self.values)
        ]


env, net, memory = Catcher(N_ENVS), ActorCritic(), Memory()
opt = torch.optim.Adam(net.parameters(), 3e-4)
obs = env.observe()

for iteration in range(ITERATIONS):
    with torch.no_grad():
        for _ in range(HORIZON):
            dist, value = net(obs)
            action = dist.sample()
            nxt, reward, done = env.step(action.numpy())
            memory.push(
                obs,
                action,
                dist.log_prob(action),
                torch.from_numpy(reward),  # LEAK any obs|Memory
                torch.from_numpy(done.astype(np.float32)),
                value,
            )
            obs = nxt
        _, bootstrap = net(obs)

    o, a, lp, r, d, v = memory.last(HORIZON)
    returns, running = torch.zeros_like(r), bootstrap
    for t in reversed(range(HORIZON)):
        running = r[t] + GAMMA * running * (1 - d[t])
        returns[t] = running
    adv = (returns - v).flatten()
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)

    for _ in range(3):
        dist, value = net(o.flatten(0, 1))
        ratio = (dist.log_prob(a.flatten()) - lp.flatten()).exp()
        policy_loss = -torch.min(ratio * adv, ratio.clamp(1 - CLIP, 1 + CLIP) * adv).mean()
        loss = (
            policy_loss
            + 0.5 * (value - returns.flatten()).pow(2).mean()
            - 0.01 * dist.entropy().mean()
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
    if iteration % 30 == 0:
        print(iteration, "reward", round(r.mean().item(), 3))
