# Thread: rusty1s/pyg temporal models and recommender repositories that enlarge an embedding for unseen
# ids. Pattern: ids are session ids that never come back; at each step the table gets rows for the new
# ones, as a new Parameter that replaces the old one in the optimizer's group.
# Expected: the assignment to self.weight (torch.cat), holder `weight`.
import memagent
import torch
from torch import nn


class DynamicEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.index = {}
        self.weight = nn.Parameter(torch.zeros(1, dim))

    def grow(self, ids, optimizer):
        fresh = [i for i in ids if i not in self.index]
        for i in fresh:
            self.index[i] = len(self.index) + 1
        if not fresh:
            return
        rows = torch.randn(len(fresh), self.weight.shape[1]) * 0.01
        old = self.weight
        self.weight = nn.Parameter(torch.cat([old.detach(), rows]))  # LEAK any weight
        group = optimizer.param_groups[0]["params"]
        group[:] = [self.weight if p is old else p for p in group]
        optimizer.state.pop(old, None)

    def forward(self, ids):
        return self.weight[torch.tensor([self.index[i] for i in ids])]


class Recommender(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.sessions = DynamicEmbedding(dim)
        self.items = nn.Embedding(200, dim)

    def forward(self, sessions, items):
        return (self.sessions(sessions) * self.items(items)).sum(-1)


def main():
    model = Recommender()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    memagent.attach(model, optimizer)
    for step in range(700):
        sessions = [step * 32 + k for k in range(32)]
        model.sessions.grow(sessions, optimizer)
        logits = model(sessions, torch.randint(0, 200, (32,)))
        loss = nn.functional.binary_cross_entropy_with_logits(
            logits, torch.randint(0, 2, (32,)).float()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
