"""Stream the transitions of an agent to a spool file, pickled one after the other."""

import pickle
import tempfile

import torch
from torch import nn


class Spool:
    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()
        self.pickler = pickle.Pickler(self.file, protocol=5)

    def write(self, observation: torch.Tensor, action: torch.Tensor, reward: float) -> None:
        record = {"observation": observation.numpy(), "action": action.tolist(), "reward": reward}
        self.pickler.dump(record)
        if self.file.tell() > 8_000_000:
            self.file.seek(0)
            self.file.truncate()


torch.manual_seed(3)
policy = nn.Sequential(nn.Linear(400, 256), nn.Tanh(), nn.Linear(256, 8))
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
spool = Spool()
for _ in range(700):
    observation = torch.randn(64, 400)
    logits = policy(observation)
    actions = logits.argmax(1)
    reward = torch.cos(observation.sum(1)) * (actions - 3.5)
    loss = (nn.functional.cross_entropy(logits, actions, reduction="none") * reward).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    spool.write(observation, actions, reward.mean().item())
print(f"{loss.item():.6f}")
