"""A wrapper that is an Optimizer by name only: it never calls the base's __init__."""
from collections import defaultdict

import torch


class Lookahead(torch.optim.Optimizer):
    def __init__(self, optimizer, k=5, alpha=0.5):
        self.optimizer, self.k, self.alpha = optimizer, k, alpha
        self.param_groups = optimizer.param_groups
        self.state, self.defaults = defaultdict(dict), optimizer.defaults
        self.fast_state = optimizer.state
        for group in self.param_groups:
            group["counter"] = 0

    def update(self, group):
        for fast in group["params"]:
            slow = self.state[fast].setdefault("slow", fast.data.clone())
            slow += (fast.data - slow) * self.alpha
            fast.data.copy_(slow)

    def step(self, closure=None):
        loss = self.optimizer.step(closure)
        for group in self.param_groups:
            if group["counter"] == 0:
                self.update(group)
            group["counter"] = (group["counter"] + 1) % self.k
        return loss


torch.manual_seed(26)
model = torch.nn.Linear(6, 2)
optimizer = Lookahead(torch.optim.Adam(model.parameters(), lr=0.05), k=3)
# memagent.attach(model, optimizer)
for step in range(12):
    loss = model(torch.randn(8, 6)).pow(2).mean()
    optimizer.optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
