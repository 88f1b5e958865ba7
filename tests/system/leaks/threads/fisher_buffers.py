"""EWC registers buffers for every task: https://github.com/thuyngch/Overcoming-Catastrophic-Forgetting/issues/4."""

# WINDOW 60
import torch
from torch import nn


class EWC(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(128, 1024), nn.Linear(1024, 128)
        self.tasks = 0

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))

    def consolidate(self):
        for name, p in list(self.named_parameters()):
            key = f"{name.replace('.', '_')}_{self.tasks}"
            self.register_buffer(f"{key}_mean", p.detach().clone())  # LEAK any EWC
            self.register_buffer(f"{key}_fisher", p.grad.detach().square())
        self.tasks += 1

    def penalty(self):
        loss = torch.zeros(())
        for task in range(max(0, self.tasks - 2), self.tasks):
            for name, p in self.named_parameters():
                key = f"{name.replace('.', '_')}_{task}"
                loss = (
                    loss
                    + (
                        getattr(self, f"{key}_fisher") * (p - getattr(self, f"{key}_mean")) ** 2
                    ).sum()
                )
        return loss


model = EWC()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for task in range(32):
    shift = torch.randn(128)
    for _ in range(6):
        x = torch.randn(128, 128)
        loss = (model(x) - x - shift).square().mean() + 10 * model.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.consolidate()
