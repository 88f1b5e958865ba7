"""Fit a generative label model by its marginal likelihood, and print the mean loss now and then."""

import torch
from torch import nn


class LabelModel(nn.Module):
    def __init__(self, functions: int, classes: int) -> None:
        super().__init__()
        self.accuracy = nn.Parameter(torch.zeros(functions, classes))
        self.propensity = nn.Parameter(torch.zeros(functions))
        self.balance = nn.Parameter(torch.zeros(classes))

    def forward(self, votes):
        prior = torch.log_softmax(self.balance, 0)
        right = torch.nn.functional.logsigmoid(self.accuracy)
        wrong = torch.nn.functional.logsigmoid(-self.accuracy)
        votes = votes.unsqueeze(-1)
        likelihood = votes * right + (1 - votes) * wrong + self.propensity.unsqueeze(-1) * votes
        return torch.logsumexp(prior + likelihood.sum(1), 1)


def fit(model: LabelModel, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    running_loss = 0.0
    for step in range(steps):
        votes = (torch.rand(256, 20) < 0.5).float()
        loss = -model(votes).mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        running_loss += loss
        if step % 100 == 99:
            print(step, float(running_loss.detach()) / (step + 1))


torch.manual_seed(0)
fit(LabelModel(20, 8), 600)
