"""Active learning wraps the labeled set once more in each round:
https://github.com/ContinualAI/avalanche/issues/560."""

import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset


class ActiveLearner:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.labeled = TensorDataset(torch.randn(32, 256), torch.randint(0, 5, (32,)))

    def acquire(self, pool):
        with torch.no_grad():
            scores = self.model(pool).softmax(-1).amax(1)
        chosen = pool[scores.argsort()[:64]]
        fresh = TensorDataset(chosen, torch.randint(0, 5, (64,)))
        self.labeled = ConcatDataset([self.labeled, fresh])  # LEAK any labeled

    def fit(self):
        loader = DataLoader(self.labeled, batch_size=32, shuffle=False)
        x, y = next(iter(loader))
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


learner = ActiveLearner(nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 5)))
for round_number in range(120):
    learner.acquire(torch.randn(256, 256))
    learner.fit()
