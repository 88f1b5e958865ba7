# Continual learning over six tasks: each task (150 steps) adds one head to a ModuleDict and its
# parameters to the optimizer. Ends with six heads. Clean.
import memagent
import torch
from torch import nn


class MultiHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(128, 256), nn.ReLU())
        self.heads = nn.ModuleDict()

    def add_task(self, name):
        self.heads[name] = nn.Linear(256, 100)
        return self.heads[name].parameters()

    def forward(self, x, name):
        return self.heads[name](self.trunk(x))


def main():
    model = MultiHead()
    optimizer = torch.optim.Adam(model.trunk.parameters(), lr=1e-3)
    memagent.attach(model, optimizer)
    for task in range(6):
        optimizer.add_param_group({"params": list(model.add_task(f"task{task}"))})
        for _ in range(150):
            loss = nn.functional.cross_entropy(
                model(torch.randn(64, 128), f"task{task}"), torch.randint(0, 100, (64,))
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


main()
