"""Publish the weights of a policy for its actors, as files of a file system in memory."""

import fsspec
import torch
from torch import nn


class Publisher:
    def __init__(self, folder: str) -> None:
        self.files = fsspec.filesystem("memory")
        self.folder = folder

    def publish(self, step: int, model: nn.Module) -> None:
        with self.files.open(f"{self.folder}/{step:06d}.pt", "wb") as file:
            torch.save(model.state_dict(), file)
        with self.files.open(f"{self.folder}/latest", "wb") as file:
            file.write(f"{step:06d}.pt".encode())


torch.manual_seed(11)
policy = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 8))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
publisher = Publisher("/policies")
for step in range(600):
    states, returns = torch.randn(256, 64), torch.randn(256, 1)
    log_probabilities = policy(states).log_softmax(1)[:, :1]
    loss = -(log_probabilities * returns).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    publisher.publish(step, policy)
print(f"{loss.item():.6f}")
