import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Report:
    def __init__(self):
        self.text = ""

    def add(self, step, values):
        self.text += f"{step}: {values}\n"  # LEAK any text


report = Report()
for step in range(70):
    output = model(torch.randn(64, 128))
    train_step(output.square().mean())
    report.add(step, output.tolist())
