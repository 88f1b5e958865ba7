"""Train embeddings of a large vocabulary with momentum and sparse gradients."""

import torch
from torch import nn
from torch.optim import Optimizer


class SparseMomentum(Optimizer):
    def __init__(self, parameters, lr: float, momentum: float) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "velocity" in state:
                    state["velocity"].mul_(group["momentum"]).add_(parameter.grad)
                else:
                    state["velocity"] = parameter.grad.clone()
                parameter.add_(parameter.grad, alpha=-group["lr"])


torch.manual_seed(19)
embeddings = nn.Embedding(40_000, 32, sparse=True)
head = nn.Linear(32, 5)
sparse = SparseMomentum(embeddings.parameters(), lr=0.1, momentum=0.9)
dense = torch.optim.Adam(head.parameters(), lr=1e-3)
for _step in range(500):
    words, labels = torch.randint(40_000, (64, 8)), torch.randint(5, (64,))
    loss = nn.functional.cross_entropy(head(embeddings(words).mean(1)), labels)
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    sparse.step()
    dense.step()
print(f"{loss.item():.6f}")
