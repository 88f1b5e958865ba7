"""REINFORCE on a small environment: sampled actions, whose log probabilities the policy keeps."""
from collections import deque

import torch
from torch import nn
from torch.distributions import Categorical


class CartPole:
    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def reset(self):
        self.state, self.steps = torch.rand(4, generator=self.generator) * 0.1 - 0.05, 0
        return self.state, {}

    def step(self, action):
        x, v, a, w = self.state.tolist()
        force = 1.0 if action else -1.0
        self.state = torch.tensor([x + v, v + 0.1 * force, a + w, w + 0.2 * a - 0.1 * force])
        self.steps += 1
        done = abs(a) > 0.3 or abs(x) > 2
        return self.state, 1.0, done, self.steps >= 30, {}


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1, self.affine2 = nn.Linear(4, 16), nn.Linear(16, 2)
        self.dropout = nn.Dropout(p=0.6)
        self.saved_log_probs, self.rewards = [], []

    def forward(self, x):
        x = torch.relu(self.dropout(self.affine1(x)))
        return torch.softmax(self.affine2(x), dim=1)


torch.manual_seed(543)
env, policy = CartPole(543), Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
# memagent.attach(policy, optimizer)


def finish_episode():
    returns, total = deque(), 0.0
    for reward in reversed(policy.rewards):
        total = reward + 0.99 * total
        returns.appendleft(total)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    loss = torch.cat([-p * r for p, r in zip(policy.saved_log_probs, returns)]).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del policy.rewards[:], policy.saved_log_probs[:]
    return loss.item()


for episode in range(8):
    state, _ = env.reset()
    done = truncated = False
    while not (done or truncated):
        probs = Categorical(policy(state.unsqueeze(0)))
        action = probs.sample()
        policy.saved_log_probs.append(probs.log_prob(action))
        state, reward, done, truncated, _ = env.step(action.item())
        policy.rewards.append(reward)
    print(episode, len(policy.rewards), finish_episode())
