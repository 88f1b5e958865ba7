import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model
        self.register_buffer("bank", torch.zeros(0, 8))

    def forward(self, x):
        out = self.inner(x)
        self.bank = torch.cat([self.bank, out.detach()])  # LEAK buffer Memory.bank
        return out


def main():
    memory = Memory()
    for step in range(40):
        train_step(memory(torch.randn(16, 32)).square().mean())


main()
