import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Node:
    def __init__(self, state, parent=None):
        self.state = state
        self.parent = parent
        self.children = []

    def expand(self, state):
        child = Node(state, self)
        self.children.append(child)  # LEAK any Node.children
        return child


root = Node(torch.randn(256, 128))
for step in range(70):
    leaf = root.expand(torch.randn(256, 128))
    train_step(model(leaf.state).square().mean())
