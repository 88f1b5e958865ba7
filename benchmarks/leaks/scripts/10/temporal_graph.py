"""Link prediction on a stream of edges with a memory per node.

The message store follows the layout discussed in shenyangHuang/TGB#80: messages wait until their node is seen again.
"""
from collections import defaultdict

import torch
from torch import nn

DIM, MSG = 64, 128


class MessageStore:
    def __init__(self):
        self.waiting = defaultdict(list)

    def push(self, nodes, messages, times):
        for node, message, t in zip(nodes.tolist(), messages, times):
            self.waiting[node].append((t, message.clone()))

    def pop(self, nodes):
        found, rows = [], []
        for node in sorted(set(nodes.tolist())):
            queue = self.waiting.pop(node, None)
            if queue:
                found.append(node)
                rows.append(torch.stack([m for _, m in queue]).mean(0))
        return found, rows


class TemporalNet(nn.Module):
    def __init__(self, nodes):
        super().__init__()
        self.register_buffer("memory", torch.zeros(nodes, DIM))
        self.update = nn.GRUCell(MSG, DIM)
        self.message = nn.Linear(2 * DIM + 16, MSG)
        self.score = nn.Sequential(nn.Linear(2 * DIM, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))

    def forward(self, src, dst):
        return self.score(torch.cat([self.memory[src], self.memory[dst]], -1)).squeeze(-1)


def stream(steps, size):
    """Sources are few and active; every target is new, as items of a shop are."""
    fresh = 500
    for step in range(steps):
        src = torch.randint(0, 500, (size,))
        yield step, src, torch.arange(fresh, fresh + size), torch.randn(size, 16)
        fresh += size


def main(steps=480, size=200):
    torch.manual_seed(14)
    torch.set_num_threads(1)
    net, store = TemporalNet(500 + steps * size), MessageStore()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step, src, dst, feat in stream(steps, size):
        found, rows = store.pop(src)
        if rows:
            new = net.update(torch.stack(rows), net.memory[found])
            net.memory[found] = new.detach()
        wrong = dst[torch.randperm(size)]
        logits = torch.cat([net(src, dst), net(src, wrong)])
        goal = torch.cat([torch.ones(size), torch.zeros(size)])
        loss = nn.functional.binary_cross_entropy_with_logits(logits, goal)
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            both = net.message(torch.cat([net.memory[src], net.memory[dst], feat], -1))
        store.push(src, both, [step] * size)
        store.push(dst, both, [step] * size)
        if step % 80 == 79:
            print(f"{step + 1} loss {loss.item():.4f}")


main()
