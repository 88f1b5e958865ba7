"""Collect one row of results for each sample in a table, for a report at the end."""

import pandas as pd
import torch
from torch import nn


class Results:
    def __init__(self) -> None:
        self.table = pd.DataFrame()

    def record(self, step: int, probabilities: torch.Tensor, labels: torch.Tensor) -> None:
        rows = pd.DataFrame(probabilities.numpy(), columns=[f"p{n}" for n in range(40)])
        rows["label"], rows["step"] = labels.numpy(), step
        self.table = pd.concat([self.table, rows], ignore_index=True)

    def accuracy(self) -> float:
        last = self.table.tail(1000)
        guess = last.drop(columns=["label", "step"]).to_numpy().argmax(1)
        return float((guess == last["label"].to_numpy()).mean())


torch.manual_seed(41)
results = Results()
model = nn.Sequential(nn.Linear(50, 200), nn.ReLU(), nn.Linear(200, 40))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(500):
    inputs, labels = torch.randn(256, 50), torch.randint(40, (256,))
    logits = model(inputs)
    loss = nn.functional.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    results.record(step, logits.detach().softmax(1), labels)
print(f"{loss.item():.6f} {results.accuracy():.4f}")
