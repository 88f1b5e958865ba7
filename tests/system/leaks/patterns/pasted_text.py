"""The text of the log is one string that gets longer: a pattern of notebook widgets."""

import torch
from torch import nn


class HtmlReport:
    def __init__(self):
        self.body = "<table>"

    def row(self, step, values):
        cells = "".join(f"<td>{value:.6f}</td>" for value in values)
        self.body += f"<tr><th>{step}</th>{cells}</tr>"  # LEAK any body


model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 200))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
report = HtmlReport()
for step in range(150):
    output = model(torch.randn(40, 32))
    loss = output.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report.row(step, output.detach().flatten().tolist())
print(len(report.body))
