"""A new model and a new optimizer for each fold; the best is kept."""
import copy

import torch
from torch import nn

torch.manual_seed(18)
x, y = torch.randn(30, 5), torch.randn(30, 1)
scores, best = [], (float("inf"), None)
for fold, test in enumerate(torch.arange(30).chunk(3)):
    train = torch.tensor([i for i in range(30) if i not in set(test.tolist())])
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    # memagent.attach(model, optimizer)
    for epoch in range(6):
        optimizer.zero_grad()
        loss = (model(x[train]) - y[train]).pow(2).mean()
        loss.backward()
        optimizer.step()
        print(fold, epoch, loss.item())
    with torch.no_grad():
        scores.append((model(x[test]) - y[test]).pow(2).mean().item())
    if scores[-1] < best[0]:
        best = scores[-1], copy.deepcopy(model)
print(scores)
torch.save(best, "best.pt")
