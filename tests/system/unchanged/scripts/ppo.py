"""Proximal policy optimization over vector environments with minibatches and an annealed rate."""
import numpy as np
import torch
from torch import nn
from torch.distributions import Normal


def layer_init(layer, std=np.sqrt(2)):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, 0.0)
    return layer


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(layer_init(nn.Linear(3, 16)), nn.Tanh(), layer_init(nn.Linear(16, 1), std=1.0))
        self.actor_mean = nn.Sequential(layer_init(nn.Linear(3, 16)), nn.Tanh(), layer_init(nn.Linear(16, 1), std=0.01))
        self.actor_logstd = nn.Parameter(torch.zeros(1, 1))

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        mean = self.actor_mean(x)
        probs = Normal(mean, self.actor_logstd.expand_as(mean).exp())
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action).sum(1), probs.entropy().sum(1), self.critic(x)


np.random.seed(1)
torch.manual_seed(1)
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4, eps=1e-5)
# memagent.attach(agent, optimizer)
state = np.random.randn(4, 3).astype("float32")
for update in range(1, 4):
    optimizer.param_groups[0]["lr"] = (1 - (update - 1) / 3) * 3e-4
    obs, actions, logprobs, rewards, values = [], [], [], [], []
    for _ in range(8):
        x = torch.from_numpy(state)
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(x)
        reward = torch.from_numpy(-(state**2).sum(1)).float()
        state = (0.9 * state + 0.1 * action.numpy() + 0.01 * np.random.randn(4, 3)).astype("float32")
        for items, item in zip((obs, actions, logprobs, rewards, values), (x, action, logprob, reward, value.flatten())):
            items.append(item)
    obs, actions, logprobs, values = torch.cat(obs), torch.cat(actions), torch.cat(logprobs), torch.cat(values)
    returns = torch.cat(rewards)
    advantages = returns - values
    indices = np.arange(32)
    for epoch in range(2):
        np.random.shuffle(indices)
        for start in range(0, 32, 16):
            mb = indices[start : start + 16]
            _, new, entropy, value = agent.get_action_and_value(obs[mb], actions[mb])
            ratio = (new - logprobs[mb]).exp()
            a = (advantages[mb] - advantages[mb].mean()) / (advantages[mb].std() + 1e-8)
            pg = torch.max(-a * ratio, -a * torch.clamp(ratio, 0.8, 1.2)).mean()
            loss = pg - 0.01 * entropy.mean() + 0.5 * ((value.view(-1) - returns[mb]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
            print(update, epoch, loss.item())
