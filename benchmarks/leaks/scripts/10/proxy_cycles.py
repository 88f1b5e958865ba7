"""Neural architecture search by random candidates; each candidate registers hooks on itself.

pytorch/pytorch#46386: modules in reference cycles live until the garbage collector runs.
"""
import random

import torch
from torch import nn


class Candidate(nn.Module):
    def __init__(self, depth, width):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, width)] + [nn.Linear(width, width) for _ in range(depth - 1)])
        self.out = nn.Linear(width, 10)
        self.flops = 0
        for layer in self.layers:
            layer.register_forward_hook(self.count)

    def count(self, layer, inputs, output):
        self.flops += inputs[0].shape[0] * layer.weight.numel()

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.out(x)


def evaluate(genome, data, steps=12):
    model = Candidate(*genome)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        x, y = next(data)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item(), model.flops


def batches(rule):
    while True:
        x = torch.randn(128, 64)
        yield x, (x @ rule).argmax(-1)


random.seed(3)
torch.manual_seed(3)
torch.set_num_threads(1)
data = batches(torch.randn(64, 10))
population = [(random.randint(2, 4), random.choice([128, 256, 384])) for _ in range(10)]
for generation in range(14):
    ranked = sorted((evaluate(genome, data) + (genome,) for genome in population))
    loss, flops, winner = ranked[0]
    print(f"generation {generation}: {winner} loss {loss:.4f} flops {flops}")
    parents = [genome for _, _, genome in ranked[:4]]
    population = parents + [
        (max(1, min(5, d + random.randint(-1, 1))), max(64, min(512, w + random.choice([-64, 0, 64]))))
        for d, w in random.choices(parents, k=6)
    ]
