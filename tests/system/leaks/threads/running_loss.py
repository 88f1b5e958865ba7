"""The running loss is a sum of losses with their graphs.

As in https://github.com/BatsResearch/labelmodels/issues/4.
"""

import torch
from torch import nn


class LabelModel(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.accuracy = nn.Parameter(torch.zeros(30, classes))
        self.balance = nn.Parameter(torch.zeros(classes))

    def forward(self, votes):
        return nn.functional.log_softmax(votes @ self.accuracy + self.balance, -1)

    def _do_estimate(self, batches, optimizer, epochs):
        for epoch in range(epochs):
            running_loss = 0.0
            epoch_loss = 0.0
            for i_batch, votes in enumerate(batches):
                optimizer.zero_grad()
                loss = -self(votes).logsumexp(1).mean() + self.accuracy.square().sum() * 1e-3
                loss.backward()
                optimizer.step()
                epoch_loss += loss.item()
                running_loss += loss  # LEAK any running_loss
            print(epoch, epoch_loss / len(batches), float(running_loss))


model = LabelModel(5)
model._do_estimate(
    [torch.randn(64, 30) for _ in range(160)], torch.optim.SGD(model.parameters(), 0.01), 1
)
