"""Recursive network on random trees whose nodes point to their parents and children."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Node:
    def __init__(self, value, parent=None):
        self.value = value
        self.parent = parent
        self.children = []
        self.state = None
        if parent is not None:
            parent.children.append(self)


def random_tree(generator, depth=4, width=96):
    root = Node(torch.randn(48, width, generator=generator))
    level = [root]
    for _ in range(depth - 1):
        level = [
            Node(torch.randn(48, width, generator=generator), node)
            for node in level
            for _ in range(2)
        ]
    return root


class TreeNet(nn.Module):
    def __init__(self, width=96, classes=3):
        super().__init__()
        self.leaf = nn.Linear(width, width)
        self.join = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, node):
        own = self.leaf(node.value)
        if node.children:
            below = sum(self(child) for child in node.children) / len(node.children)
            own = self.join(torch.cat([own, below], 1))
        node.state = torch.tanh(own)
        return node.state


def values(node):
    yield node.value
    for child in node.children:
        yield from values(child)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(14)
    model = TreeNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        tree = random_tree(generator)
        total = sum(v[:, :3] for v in values(tree))
        loss = F.cross_entropy(model.head(model(tree)), total.argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
