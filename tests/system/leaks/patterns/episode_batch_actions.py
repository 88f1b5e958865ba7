"""Actions are written with their graph into a batch that lives for all episodes:
https://github.com/oxwhirl/pymarl/pull/73."""

import torch
from torch import nn


class EpisodeBatch:
    def __init__(self, scheme, batch_size, length):
        self.data = {
            name: torch.zeros(batch_size, length, *shape) for name, shape in scheme.items()
        }

    def update(self, values, t):
        for name, value in values.items():
            self.data[name][:, t] = value  # LEAK any data


class Controller(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 16))

    def forward(self, obs):
        return self.body(obs).softmax(-1)


controller = Controller()
critic = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.RMSprop([*controller.parameters(), *critic.parameters()], lr=5e-4)
batch = EpisodeBatch({"obs": (64,), "actions": (16,)}, 128, 20)
for t_env in range(150):
    obs = torch.randn(128, 64)
    actions = controller(obs)
    batch.update({"obs": obs, "actions": actions}, t_env % 20)
    loss = (critic(actions.detach()) - obs.mean(1, keepdim=True)).square().mean() + controller(
        obs
    ).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
