"""Learn a game by tree search in games of forty moves, with the whole tree kept for a replay."""

import math

import torch
from torch import nn


class Node:
    def __init__(self, board: torch.Tensor, prior: float, parent: "Node | None" = None) -> None:
        self.board = board
        self.prior = prior
        self.parent = parent
        self.children = []
        self.visits = 0
        self.value = 0.0

    def best(self) -> "Node":
        scale = math.sqrt(self.visits + 1)
        return max(
            self.children,
            key=lambda c: c.value / (c.visits + 1) + c.prior * scale / (c.visits + 1),
        )

    def expand(self, priors: torch.Tensor) -> None:
        moves = torch.arange(len(priors))
        for move, prior in zip(moves, priors.tolist(), strict=True):
            board = self.board.roll(int(move) + 1)
            self.children.append(Node(-board, prior, self))

    def back_up(self, value: float) -> None:
        node = self
        while node is not None and node.visits < 64:
            node.visits += 1
            node.value += value
            node, value = node.parent, -value


def search(root: Node, net: nn.Module, simulations: int = 5) -> Node:
    for _ in range(simulations):
        node = root
        while node.children:
            node = node.best()
        with torch.no_grad():
            outputs = net(node.board)
        node.expand(outputs[:6].softmax(0))
        node.back_up(float(outputs[6].tanh()))
    return root.best()


def replay(node: Node):
    while node is not None:
        yield node.board
        node = node.parent


torch.manual_seed(34)
net = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 7))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
lengths = 0
for _game in range(12):
    root = Node(torch.randn(256), 1.0)
    for _move in range(40):
        played = search(root, net)
        targets = torch.tensor([float(child.visits) for child in root.children]).softmax(0)
        outputs = net(root.board)
        loss = nn.functional.cross_entropy(outputs[:6], targets) + outputs[6].square()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        root = played
    lengths += sum(1 for _ in replay(root))
print(f"{loss.item():.6f} {lengths}")
