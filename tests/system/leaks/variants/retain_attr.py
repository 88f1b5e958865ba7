import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Model:
    def __init__(self):
        self.prev = torch.zeros(())

    def step(self):
        loss = model(torch.randn(16, 32)).pow(2).mean() + 0.1 * self.prev
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        self.prev = loss  # LEAK graph Model.prev


m = Model()
opt = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
for _ in range(40):
    m.step()
    opt.step()
