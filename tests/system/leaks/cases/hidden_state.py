import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


cell = nn.GRUCell(8, 8)


def main():
    hidden = torch.zeros(16, 8)
    for step in range(40):
        output = model(torch.randn(16, 32))
        hidden = cell(output, hidden)  # LEAK hidden_state hidden
        optimizer.zero_grad()
        hidden.mean().backward(retain_graph=True)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with torch.no_grad():
            optimizer.step()


# the weights change in place between the steps whose graphs are kept: autograd would refuse
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.01)
main()
