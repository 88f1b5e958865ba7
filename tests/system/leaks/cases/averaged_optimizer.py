import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Averaged(torch.optim.SGD):
    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                number = state["number"] = state.get("number", 0) + 1
                state[f"average_{number}"] = p.detach().clone()  # LEAK any state


optimizer = Averaged(model.parameters(), lr=0.01)
for step in range(70):
    train_step(model(torch.randn(64, 128)).square().mean())
