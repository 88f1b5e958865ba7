import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class GradientWatch:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.seen = []

    def watch(self):
        for parameter in self.parameters:
            parameter.register_hook(self.seen.append)  # LEAK any GradientWatch.seen


watch = GradientWatch(model[:1].parameters())
watch.watch()
for step in range(60):
    train_step(model(torch.randn(64, 128)).square().mean())
