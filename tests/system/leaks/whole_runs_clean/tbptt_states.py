# Truncated BPTT: the states of the last 8 cells are kept with their graphs and older ones deleted, as in a
# forum implementation; one backward and one optimizer step per 8 cells. Clean.
# (Rewritten at 09:58: the first version failed at its second backward, with or without memagent.)
import memagent
import torch
from torch import nn


class TBPTT:
    def __init__(self, cell, head, optimizer, k):
        self.cell, self.head, self.optimizer, self.k = cell, head, optimizer, k
        self.states = [torch.zeros(32, 128)]

    def window(self, xs, targets):
        self.states.append(self.states[-1].detach())
        losses = []
        for x, target in zip(xs, targets):
            self.states.append(self.cell(x, self.states[-1]))
            while len(self.states) > self.k:
                del self.states[0]
            losses.append((self.head(self.states[-1]).squeeze(1) - target).pow(2).mean())
        self.optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        self.optimizer.step()


def main():
    cell, head = nn.GRUCell(16, 128), nn.Linear(128, 1)
    both = nn.ModuleList([cell, head])
    optimizer = torch.optim.SGD(both.parameters(), lr=1e-3)
    memagent.attach(both, optimizer)
    runner = TBPTT(cell, head, optimizer, k=8)
    for _ in range(800):
        xs = torch.randn(8, 32, 16)
        runner.window(xs, xs.sum(2))


main()
