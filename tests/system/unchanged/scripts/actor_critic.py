"""An actor and a critic with one trunk; the loss sums what an episode saved."""
from collections import namedtuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical

SavedAction = namedtuple("SavedAction", ["log_prob", "value"])


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.actor, self.critic = nn.Linear(4, 16), nn.Linear(16, 2), nn.Linear(16, 1)
        self.saved_actions, self.rewards = [], []

    def forward(self, x):
        x = F.relu(self.trunk(x))
        return F.softmax(self.actor(x), dim=-1), self.critic(x)


torch.manual_seed(6)
model = Policy()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
# memagent.attach(model, optimizer)
running = 10.0
for episode in range(10):
    state, total = torch.randn(4), 0.0
    for _ in range(12):
        probs, value = model(state)
        m = Categorical(probs)
        action = m.sample()
        model.saved_actions.append(SavedAction(m.log_prob(action), value))
        state = 0.9 * state + (0.1 if action.item() else -0.1)
        model.rewards.append(-state.abs().sum().item())
        total += model.rewards[-1]
    R, returns = 0, []
    for r in model.rewards[::-1]:
        R = r + 0.99 * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-5)
    policy_losses, value_losses = [], []
    for (log_prob, value), R in zip(model.saved_actions, returns):
        policy_losses.append(-log_prob * (R - value.item()))
        value_losses.append(F.smooth_l1_loss(value, torch.tensor([R])))
    optimizer.zero_grad()
    loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
    loss.backward()
    optimizer.step()
    del model.rewards[:], model.saved_actions[:]
    running = 0.05 * total + 0.95 * running
    print(episode, loss.item(), running)
