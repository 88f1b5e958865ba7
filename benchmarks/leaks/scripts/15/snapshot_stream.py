"""Send the weights to a player after each update, serialized in one stream that is used again."""

import io

import torch
from torch import nn


class Publisher:
    def __init__(self) -> None:
        self.stream = io.BytesIO()
        self.sent = 0

    def publish(self, net: nn.Module) -> None:
        begin = self.stream.tell()
        torch.save(net.state_dict(), self.stream)
        self.sent = len(self.stream.getbuffer()) - begin


class Learner:
    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(84, 256), nn.ReLU(), nn.Linear(256, 6))
        self.optimizer = torch.optim.RMSprop(self.net.parameters(), lr=1e-4)
        self.publisher = Publisher()

    def update(self) -> torch.Tensor:
        states, targets = torch.randn(64, 84), torch.randn(64, 6)
        loss = nn.functional.smooth_l1_loss(self.net(states), targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.publisher.publish(self.net)
        return loss


torch.manual_seed(19)
learner = Learner()
for _ in range(600):
    loss = learner.update()
print(f"{loss.item():.6f} {learner.publisher.sent > 0}")
