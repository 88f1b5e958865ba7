"""Episodes get longer until 40%, trajectories cleared."""

import torch
from torch import nn
from torch.distributions import Normal

torch.set_num_threads(1)
torch.manual_seed(5)
ENVS = 160


class Drone:
    """Vectorised: keep a point near the origin in wind; the observation holds a map of the wind."""

    def reset(self):
        self.p, self.v = torch.randn(ENVS, 2), torch.zeros(ENVS, 2)
        self.map = torch.randn(ENVS, 60)
        return self.observe()

    def observe(self):
        return torch.cat([self.p, self.v, self.map], 1)

    def step(self, a):
        self.v = 0.9 * self.v + 0.1 * a + 0.02 * self.map[:, :2]
        self.p = self.p + 0.1 * self.v
        return self.observe(), -self.p.norm(dim=1)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 160), nn.Tanh(), nn.Linear(160, 160), nn.Tanh())
        self.mean, self.log_std = nn.Linear(160, 2), nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return Normal(self.mean(self.body(x)), self.log_std.exp())


class Trajectory:
    def __init__(self):
        self.log_probs, self.rewards = [], []

    def clear(self):
        self.log_probs.clear()
        self.rewards.clear()

    def loss(self, gamma=0.98):
        returns, running = [], 0
        for r in reversed(self.rewards):
            running = r + gamma * running
            returns.insert(0, running)
        returns = torch.stack(returns)
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        return -(torch.stack(self.log_probs) * returns).mean()


env, agent, trajectory = Drone(), Agent(), Trajectory()
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
for episode in range(700):
    length = min(32, 4 + episode // 10)
    state = env.reset()
    for _ in range(length):
        dist = agent(state)
        action = dist.sample()
        trajectory.log_probs.append(dist.log_prob(action).sum(1))
        state, reward = env.step(action)
        trajectory.rewards.append(reward)
    loss = trajectory.loss()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    score = torch.stack(trajectory.rewards).mean().item()
    trajectory.clear()
    if episode % 100 == 0:
        print(episode, length, round(score, 3))
