"""Keep each serialized policy for opponents to be drawn from, in a table of the class."""

import io
import random

import torch
from torch import nn


class Opponents:
    blobs: dict[str, bytes] = {}

    @classmethod
    def publish(cls, name: str, policy: nn.Module) -> None:
        with io.BytesIO() as file:
            torch.save(policy.state_dict(), file)
            cls.blobs[name] = file.getvalue()

    @classmethod
    def draw(cls, policy: nn.Module) -> nn.Module:
        blob = cls.blobs[random.choice(list(cls.blobs))]
        policy.load_state_dict(torch.load(io.BytesIO(blob), weights_only=True))
        return policy


def policy() -> nn.Module:
    return nn.Sequential(nn.Linear(24, 1_024), nn.ReLU(), nn.Linear(1_024, 6))


random.seed(11)
torch.manual_seed(11)
ours, theirs = policy(), policy()
optimizer = torch.optim.Adam(ours.parameters(), lr=1e-3)
for iteration in range(800):
    if iteration % 4 == 0:
        Opponents.publish(f"iteration-{iteration}", ours)
        Opponents.draw(theirs)
    states = torch.randn(512, 24)
    with torch.no_grad():
        reply = theirs(states).softmax(-1)
    loss = (ours(states).softmax(-1) * reply).sum(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
