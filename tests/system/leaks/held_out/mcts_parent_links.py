"""The root of a search tree moves to the chosen child, which still refers to its parent.
https://github.com/suragnair/alpha-zero-general/issues/111"""

import math
import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150
ACTIONS = 7


class Node:
    __slots__ = ("parent", "state", "prior", "children", "visits", "value_sum")

    def __init__(self, parent, state, prior):
        self.parent = parent  # LEAK any root|parent|Node
        self.state = state
        self.prior = prior
        self.children = {}
        self.visits = 0
        self.value_sum = 0.0

    @property
    def value(self):
        return self.value_sum / self.visits if self.visits else 0.0

    def select(self):
        scale = math.sqrt(self.visits + 1)
        return max(
            self.children.values(), key=lambda c: c.value + 1.5 * c.prior * scale / (1 + c.visits)
        )


class Tree:
    def __init__(self, network, state):
        self.network = network
        self.root = Node(None, state, 1.0)

    @torch.no_grad()
    def simulate(self):
        node = self.root
        while node.children:
            node = node.select()
        priors, value = self.network(node.state.flatten().unsqueeze(0))
        for action, prior in enumerate(priors[0].softmax(0).tolist()):
            state = node.state.roll(action + 1, 0)
            node.children[action] = Node(node, state, prior)  # LEAK any root|parent|Node
        value = value.item()
        while node is not None:
            node.visits += 1
            node.value_sum += value
            node = node.parent

    def play(self):
        visits = torch.tensor([c.visits for c in self.root.children.values()], dtype=torch.float)
        action = int(visits.argmax())
        self.root = self.root.children[action]  # LEAK any root|parent|Node
        return visits / visits.sum().clamp(min=1)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16 * 32, 64), nn.ReLU())
        self.policy = nn.Linear(64, ACTIONS)
        self.value = nn.Linear(64, 1)

    def forward(self, x):
        hidden = self.body(x)
        return self.policy(hidden), self.value(hidden).tanh()


network = Network()
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
tree = Tree(network, torch.randn(16, 32))
for move in range(STEPS):
    for _ in range(5):
        tree.simulate()
    state = tree.root.state
    target = tree.play()
    policy, value = network(state.flatten().unsqueeze(0))
    loss = -(policy.log_softmax(1) * target).sum() + (value - 0.1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
