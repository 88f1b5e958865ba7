import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# WINDOW 60
class Evaluator:
    def __init__(self, data):
        self.data = data
        self.results = []

    @torch.no_grad()
    def run(self, step):
        predictions = [model(batch) for batch in self.data]
        self.results.append((step, predictions))  # LEAK list Evaluator.results


evaluator = Evaluator([torch.randn(64, 128) for _ in range(6)])
for step in range(90):
    train_step(model(torch.randn(64, 128)).square().mean())
    if step % 10 == 0:
        evaluator.run(step)
