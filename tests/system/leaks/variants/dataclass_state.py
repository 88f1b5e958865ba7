import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


from dataclasses import dataclass, field


@dataclass
class State:
    step: int = 0
    grads: list = field(default_factory=list)


@dataclass
class Ctx:
    state: State = field(default_factory=State)


ctx = Ctx()


def on_step():
    ctx.state.grads.append([p.grad.clone() for p in model.parameters()])  # LEAK list State.grads


for _ in range(40):
    train_step(model(torch.randn(16, 32)).pow(2).mean())
    on_step()
